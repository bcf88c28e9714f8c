"""Pictures as text and as types of content."""

from __future__ import annotations

import base64
from collections.abc import Iterator

import trio

CONTENT_TYPES = {"png": "image/png", "webp": "image/webp", "jpeg": "image/jpeg"}

_PIECE = 3 << 18
"""Bytes that are encoded at once, in half a millisecond."""


def base64_pieces(data: bytes) -> Iterator[bytes]:
    """Yield base64 of a picture in pieces, so that no call works on a whole one."""
    view = memoryview(data)
    for at in range(0, len(view), _PIECE):
        yield base64.b64encode(view[at : at + _PIECE])


async def base64_of(data: bytes) -> list[bytes]:
    """Return base64 of a picture in pieces; other tasks run between two."""
    made = []
    for piece in base64_pieces(data):
        made.append(piece)
        await trio.lowlevel.checkpoint()
    return made
