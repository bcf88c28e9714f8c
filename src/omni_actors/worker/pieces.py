"""Pieces of a picture that is too large for a frame."""

from __future__ import annotations

import msgspec

from omni_actors.protocol.request import MediaChunk

PIECE_BYTES = 4 << 20
"""The largest piece: a quarter of a control frame's limit."""


def pieces_of(chunk: MediaChunk) -> list[MediaChunk]:
    """Return the pieces of a picture or preview in order, which the serving process puts together again."""
    if "pieces" in chunk.meta:
        return [chunk]
    data = chunk.data
    begins = range(0, len(data), PIECE_BYTES)
    return [
        msgspec.structs.replace(
            chunk, meta={**chunk.meta, "piece": piece, "pieces": len(begins)}, data=data[begin : begin + PIECE_BYTES]
        )
        for piece, begin in enumerate(begins)
    ]
