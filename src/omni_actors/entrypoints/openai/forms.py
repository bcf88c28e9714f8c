"""``multipart/form-data``, read as it arrives: small fields are kept, files are passed on piece by piece."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from typing import Any

from werkzeug.http import parse_options_header
from werkzeug.sansio.multipart import Data, Epilogue, Field, File, MultipartDecoder, NeedData

from omni_actors.protocol.errors import OmniError, invalid_request

MAX_PARTS = 64
MAX_FIELDS_BYTES = 1 << 20
MAX_TYPE = 1024
"""Most characters of the content type. (A boundary has at most 70, by RFC 2046.)"""
PADDING = 64
"""Most blanks that may follow a boundary in its line."""
SLICE = 64 << 10
"""Bytes searched in one go, so that a large file never holds up the loop."""
MAX_HEAD = SLICE + (16 << 10)
"""Bytes searched for the end of a part's head, which is parsed in one go."""

Take = Callable[[AsyncIterator[bytes], str | None, str | None], Awaitable[Any]]
"""A function that takes a file: its pieces, file name and content type."""

TakeFrom = Callable[[str, AsyncIterator[bytes], str | None, str | None], Awaitable[Any]]
"""A function that takes a file: its field, pieces, file name and content type."""


async def read_form(
    body: AsyncIterator[bytes], content_type: str, file_field: str, take: Take, lists: Collection[str] = ()
) -> tuple[dict[str, Any], Any]:
    """Read a form with one file, in ``file_field``.

    Returns:
        The fields as of :func:`read_files`, and the result of ``take`` for the file (``None`` without a file).

    Raises:
        OmniError: As by :func:`read_files`.
    """

    async def take_from(
        field: str, pieces: AsyncIterator[bytes], filename: str | None, content_type: str | None
    ) -> Any:
        return await take(pieces, filename, content_type)

    fields, files = await read_files(body, content_type, {file_field: 1}, take_from, lists)
    return fields, files[file_field][0] if file_field in files else None


async def read_files(
    body: AsyncIterator[bytes], content_type: str, most: Mapping[str, int], take: TakeFrom, lists: Collection[str] = ()
) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """Read a form with files.

    A field named with ``[]`` becomes a list under its bare name; so does a field of ``lists``, given once or several
    times. Fields with several files may be named with ``[]`` or without.

    Args:
        body: The body in pieces.
        content_type: The content type of the body, with its boundary.
        most: The fields that hold files, with the most files of each.
        take: Called with each file in turn; the form is read on when it returns.
        lists: The fields that hold several values.

    Returns:
        The other fields, and the results of ``take`` by field in the order of the form.

    Raises:
        OmniError: 400 for any other repeated field, for a file in another field, for too many files, and for a
            malformed form.
    """
    if len(content_type) > MAX_TYPE:
        raise invalid_request("The form's content type is too long.")
    _, options = parse_options_header(content_type)
    boundary = options.get("boundary", "")
    if not boundary:
        raise invalid_request("The form's content type names no boundary.")
    try:
        reader = _Reader(body, boundary)
    except ValueError:  # a boundary with characters outside of latin-1
        raise _malformed() from None
    fields: dict[str, Any] = {}
    files: dict[str, list[Any]] = {}
    size = 0
    while (part := await reader.part()) is not None:
        if not part.name:
            raise invalid_request("A part of the form has no name.")
        field = _file_field(part.name, most)
        if isinstance(part, File) or field is not None:  # some clients send no file name
            if field is None or len(files.get(field, ())) == most[field]:
                raise _misplaced(part.name, field, most)
            taken = await take(field, reader.data(), getattr(part, "filename", None), part.headers.get("content-type"))
            files.setdefault(field, []).append(taken)
            async for _ in reader.data():  # the rest that `take` did not read
                pass
            continue
        whole = bytearray()
        async for piece in reader.data():
            whole += piece
            size += len(piece)
            if size > MAX_FIELDS_BYTES:
                raise invalid_request("The form's fields are too large.", part.name)
        try:
            value = whole.decode()
        except UnicodeDecodeError:
            raise invalid_request(f"'{part.name}' is not UTF-8.", part.name) from None
        name = part.name.removesuffix("[]")
        listed = name in lists or part.name.endswith("[]")
        if listed and isinstance(several := fields.setdefault(name, []), list):
            several.append(value)
        elif not listed and name not in fields:
            fields[name] = value
        else:
            raise invalid_request(f"'{name}' comes twice.", name)
    return fields, files


def _file_field(name: str, most: Mapping[str, int]) -> str | None:
    """Return the field of files that a part belongs to, if there is one."""
    bare = name.removesuffix("[]")
    return bare if bare in most and (bare == name or most[bare] > 1) else None


def _misplaced(name: str, field: str | None, most: Mapping[str, int]) -> OmniError:
    if field is not None and most[field] > 1:
        return invalid_request(f"'{field}' has more than {most[field]} files.", field)
    if len(most) == 1:
        return invalid_request(f"The form must have one file, in field '{next(iter(most))}'.", name)
    if field is not None:
        return invalid_request(f"'{field}' has more than one file.", field)
    return invalid_request(f"A file is in field '{name[:40]}'; the form's files are: {', '.join(most)}.", name)


class _Reader:
    """Reads the parts of a form one after the other.

    werkzeug's decoder gets a line that may be a boundary only when the line is complete: of a line cut behind the
    boundary (``--b-`` of ``--b--``) the decoder would take the preceding line break for data. The decoder gets an empty
    line only together with the following bytes: the line break that ends a part's head may also belong to a boundary
    that comes next.
    """

    def __init__(self, body: AsyncIterator[bytes], boundary: str) -> None:
        self._decoder = MultipartDecoder(boundary.encode("latin-1"), MAX_FIELDS_BYTES, max_parts=MAX_PARTS)
        self._line = len(boundary) + PADDING
        self._held = b""
        self._given = b""  # the last bytes given
        self._slices = _slices(body)
        self._in_part = False
        self._head = 0

    async def part(self) -> Field | File | None:
        """Return the head of the next part; ``None`` after the last."""
        event = await self._next()
        if isinstance(event, Field | File):
            self._in_part = True
            return event
        if isinstance(event, Epilogue):
            return None
        return await self.part()  # the preamble

    async def data(self) -> AsyncIterator[bytes]:
        """Yield the rest of the current part."""
        while self._in_part:
            event = await self._next()
            if not isinstance(event, Data):
                raise _malformed()
            self._in_part = event.more_data
            if event.data:
                yield event.data

    async def _next(self) -> Any:
        while True:
            try:
                event = self._decoder.next_event()
            except Exception:  # werkzeug raises ValueError, and its own HTTP errors for its limits
                raise _malformed() from None
            if not isinstance(event, NeedData):
                self._head = 0
                return event
            piece = await anext(self._slices, None)
            self._head += len(piece or b"")
            if self._head > MAX_HEAD and not self._in_part:
                raise _malformed()
            try:
                self._decoder.receive_data(self._held if piece is None else self._whole_lines(piece))
                if piece is None:
                    self._decoder.receive_data(None)
            except Exception:
                raise _malformed() from None

    def _whole_lines(self, piece: bytes) -> bytes:
        data = self._held + piece
        end = 1 + max(data.rfind(b"\n"), data.rfind(b"\r", 0, len(data) - 1))
        if len(data) - end > self._line:
            end = len(data)
        seen = self._given + data[max(0, end - 4) : end]
        if empty := next((line for line in (b"\r\n", b"\n", b"\r") if seen.endswith(line * 2)), b""):
            end = max(0, end - len(empty))
        self._held = data[end:]
        self._given = (self._given + data[max(0, end - 4) : end])[-4:]
        return data[:end]


async def _slices(body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    async for piece in body:
        for at in range(0, len(piece), SLICE):
            yield piece[at : at + SLICE]


def _malformed() -> OmniError:
    return invalid_request("The body is not a valid multipart form.")
