"""The pictures of one stage of a request: each reaches the client whole, once."""

from __future__ import annotations

from typing import Any

import msgspec

from omni_actors.orchestrator.diverged import BrokenPicture
from omni_actors.protocol.request import MediaChunk, StepProgress

MAX_PICTURE_BYTES = 64 << 20
"""The largest encoded picture. 4096 x 4096 pixels of noise are 48 MiB as PNG."""

_PIECE = ("piece", "pieces")


class PictureLedger:
    """The pictures that the client has, and the pieces of pictures that are not whole.

    A picture that is computed again differs by a level here and there, and its file everywhere: the end of one file
    does not continue the begin of another one. So a picture is delivered whole or not at all, and an attempt that makes
    a delivered picture again delivers nothing of it. Previews and progress count for nothing, but an attempt repeats
    none that an earlier attempt delivered.
    """

    __slots__ = ("_begun", "_finished", "_pieces", "_previews", "_steps", "whole")

    def __init__(self) -> None:
        self.whole: set[tuple[int, int]] = set()
        """The pictures that the client has, as (index, layer)."""
        self._begun: set[tuple[int, int]] = set()
        """The pictures that the present attempt has sent, wholly or in part."""
        self._finished: set[int] = set()
        """Indexes of the pictures of which the client has any layer."""
        self._pieces: dict[tuple[int, int, int], list[bytes]] = {}
        """Pieces by index, layer and, for a preview, step."""
        self._previews: dict[int, int] = {}
        """Steps of the latest previews, by index."""
        self._steps: dict[int, int] = {}
        """The latest steps that are done, by index."""

    def take(self, chunk: MediaChunk) -> MediaChunk | None:
        """Note a picture, a preview, or a piece of one, and return what the client gets now.

        Raises:
            BrokenPicture: The picture is larger than :data:`MAX_PICTURE_BYTES`, the attempt has sent the picture
                before, or a piece does not follow the last one.
        """
        meta = chunk.meta
        index, layer = _whole_number(meta, "index", 0), _whole_number(meta, "layer", 0)
        step = _whole_number(meta, "preview", 0)
        place = index, layer
        if step:
            useless = index in self._finished or step <= self._previews.get(index, 0)
        else:
            if not meta.get("piece"):
                self._begin(place)
            useless = place in self.whole
        if useless:
            return None
        if "pieces" in meta:
            data = self._join((index, layer, step), chunk)
            if data is None:
                return None
            rest = {name: value for name, value in meta.items() if name not in _PIECE}
            chunk = msgspec.structs.replace(chunk, data=data, meta=rest)
        if step:
            self._previews[index] = step
        else:
            self.whole.add(place)
            self._finished.add(index)
        if self._pieces:
            self._drop_previews(index, step)
        return chunk

    def step(self, progress: StepProgress) -> bool:
        """Note that a step is done, and return whether the client does not know that yet."""
        if progress.step <= self._steps.get(progress.index, 0):
            return False
        self._steps[progress.index] = progress.step
        return True

    def has(self, index: int) -> bool:
        """Return whether the client has the picture, or a layer of the picture."""
        return index in self._finished

    def done(self) -> None:
        """Check a finished stage. Raises :class:`BrokenPicture` for a picture whose last pieces are missing."""
        if self._pieces:
            raise BrokenPicture("The stage ended in the middle of a picture.")

    def again(self) -> None:
        """Begin a new attempt: pieces of the earlier one belong to no picture."""
        self._pieces.clear()
        self._begun.clear()

    def _begin(self, place: tuple[int, int]) -> None:
        if place in self._begun:
            raise BrokenPicture(f"Picture {place[0]} was sent twice.")
        self._begun.add(place)

    def _drop_previews(self, index: int, step: int) -> None:
        """Drop pieces of previews that this preview, or the finished picture (step 0), makes useless."""
        for found, layer, preview in list(self._pieces):
            if found == index and preview and (not step or preview <= step):
                del self._pieces[found, layer, preview]

    def _join(self, place: tuple[int, int, int], chunk: MediaChunk) -> bytes | None:
        """Note a piece, and return the whole picture once there are all of its pieces."""
        piece, pieces = _whole_number(chunk.meta, "piece", -1), _whole_number(chunk.meta, "pieces", -1)
        held = self._pieces.setdefault(place, [])
        if piece != len(held) or piece >= pieces:
            raise BrokenPicture(f"Piece {piece} of {pieces} of a picture followed {len(held)} pieces.")
        held.append(chunk.data)
        if sum(map(len, held)) > MAX_PICTURE_BYTES:
            raise BrokenPicture(f"A picture is larger than {MAX_PICTURE_BYTES >> 20} MiB.")
        if len(held) < pieces:
            return None
        del self._pieces[place]
        return b"".join(held)


def _whole_number(meta: dict[str, Any], name: str, default: int) -> int:
    value = meta.get(name, default)
    if type(value) is not int:
        raise BrokenPicture(f"'{name}' of a picture is no whole number.")
    return value
