"""The sizes of pieces of audio: few frames while a listener waits, many while the listener's buffer is full.

A piece has the same overhead whatever its length (context that is decoded again, a batch, a message on the wire), so
long pieces are cheap. But all frames of a piece must be there before its first sample can leave.
"""

from __future__ import annotations

import time
from collections.abc import Callable

SHARE = 0.5
"""The share of the listener's buffer that a piece may take to arrive. The rest is a reserve for late frames."""


class Ramp:
    """The sizes of one request's pieces, in frames of ``frame_s`` seconds.

    The first piece has ``first`` frames. Afterwards frames are assumed to arrive at least as fast as they are played,
    and the next piece has the frames that arrive while half of the listener's buffer (:attr:`buffer_s`) is played: at
    least ``least``, at most ``most``, and at most twice the frames of the last piece, since one measurement is no
    trend. A draining buffer makes small pieces at once.

    If more frames wait (the codec is slow, or the input arrived at once), small pieces would make the delay worse: then
    a piece has up to twice the frames of the last piece.

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
        """Seconds of sound in the buffer of a listener who plays from the first sample on; negative once it is
        empty."""
        return self._emitted_s - (self._clock() - self._heard_from) if self._emitted_s else 0.0

    @property
    def wanted(self) -> int:
        """The number of frames for the next piece."""
        if not self._last:
            return self._next
        if not self._adaptive:
            return self._most
        affordable = int(SHARE * self.buffer_s / self._frame_s)
        return max(self._least, min(affordable, 2 * self._last, self._most))

    def take(self, waiting: int) -> int:
        """Return the frames of the next piece when ``waiting`` frames wait. Changes nothing."""
        most = self.wanted
        if self._last and self._adaptive:
            most = max(most, min(2 * self._last, self._most))
        return min(waiting, most)

    def cut(self, frames: int, seconds: float) -> None:
        """Take note of a piece with ``frames`` frames and ``seconds`` of sound (0 at the begin with a look-ahead)."""
        self._last = max(1, frames)
        if seconds and not self._emitted_s:
            self._heard_from = self._clock()
        self._emitted_s += seconds
