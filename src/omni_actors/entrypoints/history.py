"""Transcripts of spoken answers, which later turns of a conversation refer to by id."""

from __future__ import annotations

import time
from collections import OrderedDict

MAX_HISTORY = 8 << 20
"""Characters of transcripts that are kept for later turns."""


class SpokenHistory:
    """Transcripts of spoken answers by id, for later turns that refer to them.

    Bounded by :data:`MAX_HISTORY`: the oldest transcript is dropped first, perhaps before its time.
    """

    def __init__(self, keep_s: float) -> None:
        self._keep_s = keep_s
        self._kept: OrderedDict[str, tuple[float, str]] = OrderedDict()
        self._size = 0

    def expires_at(self) -> int:
        return int(time.time() + self._keep_s)

    def put(self, id: str, transcript: str) -> None:
        now = time.monotonic()
        self._kept[id] = (now + self._keep_s, transcript)
        self._size += len(transcript) + len(id)
        while self._kept:
            oldest, (until, text) = next(iter(self._kept.items()))
            if until > now and self._size <= MAX_HISTORY:
                break
            del self._kept[oldest]
            self._size -= len(text) + len(oldest)

    def get(self, id: str) -> str | None:
        until, transcript = self._kept.get(id, (0.0, ""))
        return transcript if time.monotonic() < until else None
