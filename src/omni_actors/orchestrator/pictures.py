"""The pictures of one stage of a request: each reaches the client whole, once."""

from __future__ import annotations

import msgspec

from omni_actors.protocol.errors import ErrorInfo, OmniError
from omni_actors.protocol.request import MediaChunk

MAX_PICTURE_BYTES = 64 << 20
"""The largest encoded picture. 4096 x 4096 pixels of noise are 48 MiB as PNG."""


class PictureLedger:
    """The pictures that the client has, and the pieces of pictures that are not whole.

    A picture that is computed again differs by a level here and there, and its file everywhere: the end of one file
    does not continue the begin of another one. So a picture is delivered whole or not at all, and an attempt that makes
    a delivered picture again delivers nothing of it.
    """

    __slots__ = ("_pieces", "whole")

    def __init__(self) -> None:
        self.whole: set[int] = set()
        """Indexes of the pictures that the client has."""
        self._pieces: dict[int, list[bytes]] = {}

    def take(self, chunk: MediaChunk) -> MediaChunk | None:
        """Note a picture, a piece of one, or a preview, and return what the client gets now.

        Raises:
            OmniError: The picture is larger than :data:`MAX_PICTURE_BYTES`.
        """
        meta = chunk.meta
        index = meta["index"]
        if index in self.whole:
            return None
        if meta.get("preview"):
            return chunk
        pieces = meta.get("pieces", 1)
        if pieces > 1:
            held = self._pieces.setdefault(index, [])
            held.append(chunk.data)
            if sum(map(len, held)) > MAX_PICTURE_BYTES:
                message = f"A picture is larger than {MAX_PICTURE_BYTES >> 20} MiB."
                raise OmniError(ErrorInfo(message=message, code="stage_failed", status=500))
            if len(held) < pieces:
                return None
            del self._pieces[index]
            rest = {name: value for name, value in meta.items() if name not in ("piece", "pieces")}
            chunk = msgspec.structs.replace(chunk, data=b"".join(held), meta=rest)
        self.whole.add(index)
        return chunk

    def again(self) -> None:
        """Begin a new attempt: pieces of the earlier one belong to no picture."""
        self._pieces.clear()
