"""The least rate at which a body may come."""

from __future__ import annotations

import trio


class MinimumRate:
    """A least rate, for what is waited for.

    It is an allowance of seconds: each second of waiting takes one off, each byte that comes gives ``1 / bytes_per_s``
    back, never to more than ``patience_s``. So a sender may be silent for that long, and has to keep the rate over a
    longer time. Time in which nobody waits does not count.
    """

    __slots__ = ("_bytes_per_s", "_left_s", "_patience_s", "_since")

    def __init__(self, bytes_per_s: float, patience_s: float) -> None:
        """A rate of 0 asks only that something comes every ``patience_s`` seconds."""
        self._bytes_per_s = bytes_per_s
        self._patience_s = patience_s
        self._left_s = patience_s
        self._since: float | None = None

    @property
    def left_s(self) -> float:
        """Seconds that may still be waited; below zero it is behind by so many."""
        return self._left_s if self._since is None else self._left_s - (trio.current_time() - self._since)

    @property
    def waits(self) -> bool:
        """Whether something is waited for."""
        return self._since is not None

    def begin(self) -> float:
        """Wait from now on. Returns the seconds that it may take."""
        self._since = trio.current_time()
        return self._left_s

    def came(self, size: int) -> None:
        """End the wait: ``size`` bytes have come."""
        earned = size / self._bytes_per_s if self._bytes_per_s else self._patience_s
        self._left_s = min(self._patience_s, self.left_s + earned)
        self._since = None
