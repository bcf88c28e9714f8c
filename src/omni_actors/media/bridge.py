"""The bridge of the edges that leave the media stage: pieces of clips become clips again.

A clip of half an hour is 115 MB. As one payload it would hold the media process for as long as it takes to write it
into shared memory, and fill the arena; so it travels in pieces, and is put together in the worker that wants it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from omni_actors.connectors.payload import Payload


class JoinClips:
    """``pcm`` payloads whose metadata tells the ``length`` of their clip (in samples), into one payload per clip.

    A clip that comes in one piece goes through as it is; the samples of another are this bridge's own copy.
    """

    def __init__(self) -> None:
        self._samples: np.ndarray[Any, Any] | None = None
        self._filled = 0

    def feed(self, payload: Payload | None, end: bool) -> list[Payload]:
        whole = [] if payload is None else self._add(payload)
        if end and self._samples is not None:
            raise ValueError("the last clip is incomplete")
        return whole

    def _add(self, payload: Payload) -> list[Payload]:
        piece = payload.tensors["samples"]
        count = payload.meta["length"]
        if self._samples is None:
            if len(piece) == count:
                return [payload]
            self._samples = np.empty(count, piece.dtype)
        self._samples[self._filled : self._filled + len(piece)] = piece
        self._filled += len(piece)
        if self._filled < count:
            return []
        whole = Payload(payload.kind, payload.meta, {"samples": self._samples})
        self._samples = None
        self._filled = 0
        return [whole]
