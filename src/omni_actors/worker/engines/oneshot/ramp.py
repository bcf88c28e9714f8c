"""How many frames of audio go into the next piece: few where somebody waits, many where the listener has enough.

A piece costs the same overhead whatever its length (the context that is decoded again, a batch, a message on the wire),
so long ones are cheap; but all of a piece's frames must be there before its first sample can leave.
"""

from __future__ import annotations

import time
from collections.abc import Callable

SHARE = 0.5
"""A piece may take so much of the time that the listener's buffer lasts. The other half is for what comes late."""


class Ramp:
    """The sizes of one request's pieces, in frames of ``frame_s`` seconds.

    The first has ``first``. Then frames are taken to come at least as fast as they are played, and the next piece has
    as many as come while half of the listener's buffer (:attr:`buffer_s`) is played: at least ``least``, at most
    ``most``, and at most twice the last one's, since one measurement is no habit. A buffer that drains makes small
    pieces at once.

    Where more frames wait than that (the codec is what is slow, or its input came in one go) small pieces would make
    things worse: then a piece has up to twice the last one's.

    With ``adaptive`` false every piece behind the first has ``most``.
    """

    def __init__(
        self,
        frame_s: float,
        first: int,
        least: int,
        most: int,
        adaptive: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._frame_s = frame_s
        self._least = max(1, min(least, most))
        self._most = most
        self._next = max(1, min(first, most))
        self._last = 0  # frames of the last piece, 0 before the first
        self._adaptive = adaptive
        self._clock = clock
        self._heard_from = 0.0
        self._emitted_s = 0.0

    @property
    def buffer_s(self) -> float:
        """Seconds of sound that a listener has who plays from the first sample on; negative once it has run dry."""
        return self._emitted_s - (self._clock() - self._heard_from) if self._emitted_s else 0.0

    @property
    def wanted(self) -> int:
        """Frames that make the next piece worth making."""
        if not self._last:
            return self._next
        if not self._adaptive:
            return self._most
        affordable = int(SHARE * self.buffer_s / self._frame_s)
        return max(self._least, min(affordable, 2 * self._last, self._most))

    def take(self, waiting: int) -> int:
        """Frames of the next piece when so many wait. Changes nothing."""
        most = self.wanted
        if self._last and self._adaptive:
            most = max(most, min(2 * self._last, self._most))
        return min(waiting, most)

    def cut(self, frames: int, seconds: float) -> None:
        """A piece was made of so many frames, and so many seconds of sound left with it (0 at the begin, where a codec
        looks ahead)."""
        self._last = max(1, frames)
        if seconds and not self._emitted_s:
            self._heard_from = self._clock()
        self._emitted_s += seconds
