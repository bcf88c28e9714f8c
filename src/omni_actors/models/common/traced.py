"""Text that knows which of its characters a client wrote, through every operation of a chat template."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, SupportsIndex, cast

TEMPLATE, CLIENT, UNSURE = 0, 1, 2
"""The author of a character: the chat template, a client, or either of them (after an operation that is not
followed)."""


class Traced(str):
    """A text, with the origin of each of its characters in ``origins`` (bytes of the same length).

    The methods that cut, join and replace keep the origins; any other method gives a plain ``str``, which counts as the
    template's: :func:`followed` is for such results.
    """

    __slots__ = ("origins",)

    origins: bytes

    def __new__(cls, text: str, origins: bytes) -> Traced:
        made = super().__new__(cls, text)
        made.origins = origins
        return made

    @classmethod
    def of(cls, text: str, origin: int) -> Traced:
        """Return a text of one origin."""
        return cls(text, bytes((origin,)) * len(text))

    def __str__(self) -> str:
        return self

    @property
    def plain(self) -> str:
        """Return the text alone."""
        return str.__str__(self)

    def __getitem__(self, at: SupportsIndex | slice) -> Traced:
        text = super().__getitem__(at)
        if isinstance(at, slice):
            return Traced(text, self.origins[at])
        return Traced(text, bytes((self.origins[at],)))

    def __iter__(self) -> Iterator[Any]:
        return (self[at] for at in range(len(self)))

    def __add__(self, other: str) -> Traced:
        return concatenated((self, other))

    def __radd__(self, other: str) -> Traced:
        return concatenated((other, self))

    def __mul__(self, times: SupportsIndex) -> Traced:
        return Traced(super().__mul__(times), self.origins * int(times))

    __rmul__ = __mul__

    # ---- methods that cut

    def lstrip(self, characters: str | None = None, /) -> Traced:
        return self[len(self) - len(super().lstrip(characters)) :]

    def rstrip(self, characters: str | None = None, /) -> Traced:
        return self[: len(super().rstrip(characters))]

    def strip(self, characters: str | None = None, /) -> Traced:
        return self.rstrip(characters).lstrip(characters)

    def removeprefix(self, prefix: str, /) -> Traced:
        return self[len(self) - len(super().removeprefix(prefix)) :]

    def removesuffix(self, suffix: str, /) -> Traced:
        return self[: len(super().removesuffix(suffix))]

    def split(self, separator: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return self._found(super().split(separator, maxsplit), separator)

    def rsplit(self, separator: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return self._found(super().rsplit(separator, maxsplit), separator)

    def splitlines(self, keepends: bool = False) -> list[str]:
        made: list[str] = []
        at = 0
        for line, whole in zip(super().splitlines(keepends), super().splitlines(True), strict=True):
            made.append(self[at : at + len(line)])
            at += len(whole)
        return made

    def partition(self, separator: str, /) -> tuple[str, str, str]:
        before, found, _ = super().partition(separator)
        cut = len(before), len(before) + len(found)
        return self[: cut[0]], self[cut[0] : cut[1]], self[cut[1] :]

    def rpartition(self, separator: str, /) -> tuple[str, str, str]:
        before, found, _ = super().rpartition(separator)
        cut = len(before), len(before) + len(found)
        return self[: cut[0]], self[cut[0] : cut[1]], self[cut[1] :]

    def _found(self, pieces: list[str], separator: str | None) -> list[str]:
        """Return these pieces, which stand in this order in the text. Between two pieces is the separator, or white
        space."""
        made: list[str] = []
        at = 0
        for piece in pieces:
            if separator is None:
                at = self.index(piece, at)
            made.append(self[at : at + len(piece)])
            at += len(piece) + len(separator or "")
        return made

    # ---- methods that change

    def replace(self, old: str, new: str, count: SupportsIndex = -1, /) -> Traced:
        if not old:
            return cast("Traced", followed(super().replace(old, new, count), self, new))
        pieces = self.split(old, count)
        return concatenated(it for piece in pieces for it in (new, piece))[len(new) :]

    def join(self, pieces: Iterable[str], /) -> Traced:
        return joined(self, pieces)

    def lower(self) -> Traced:
        return self._letters(super().lower())

    def upper(self) -> Traced:
        return self._letters(super().upper())

    def title(self) -> Traced:
        return self._letters(super().title())

    def capitalize(self) -> Traced:
        return self._letters(super().capitalize())

    def casefold(self) -> Traced:
        return self._letters(super().casefold())

    def swapcase(self) -> Traced:
        return self._letters(super().swapcase())

    def _letters(self, made: str) -> Traced:
        """Return the same letters in another case: nearly always one for one."""
        return Traced(made, self.origins) if len(made) == len(self) else cast("Traced", followed(made, self))


def origins_of(text: str) -> bytes:
    """Return the origins of any text: a plain text is the template's."""
    return text.origins if isinstance(text, Traced) else bytes(len(text))


def concatenated(pieces: Iterable[Any]) -> Traced:
    """Return texts (or other values as ``str``), one after the other."""
    texts = [piece if isinstance(piece, str) else str(piece) for piece in pieces]
    return Traced("".join(texts), b"".join(map(origins_of, texts)))


def joined(separator: str, pieces: Iterable[Any]) -> Traced:
    """Return texts with a separator between them."""
    made = concatenated(it for piece in pieces for it in (separator, piece))
    return made[len(separator) :] if made else made


def traced(value: Any) -> Any:
    """Return a client's value, with every text in it (keys too) marked as the client's."""
    if isinstance(value, str):
        return Traced.of(value, CLIENT)
    if isinstance(value, Mapping):
        return {traced(key): traced(item) for key, item in value.items()}
    return [traced(item) for item in value] if isinstance(value, list | tuple) else value


def followed(made: Any, *sources: Any, origin: int = UNSURE) -> Any:
    """Return the result of an operation that keeps no origins: a result made from a client's text gets ``origin``."""
    if isinstance(made, str) and not isinstance(made, Traced):
        return Traced.of(str.__str__(made), origin) if holds_client(sources) else made
    if isinstance(made, list | tuple):
        return type(made)([followed(it, *sources, origin=origin) for it in made])
    return made


def holds_client(value: Any) -> bool:
    """Return whether a client's text is somewhere in a value."""
    if isinstance(value, Traced):
        return any(value.origins)
    if isinstance(value, Mapping):
        return any(holds_client(it) for pair in value.items() for it in pair)
    return isinstance(value, list | tuple) and any(map(holds_client, value))
