"""The minimum rate at which a body must arrive."""

from __future__ import annotations

import trio


class MinimumRate:
    """A minimum rate for bytes that a task waits for.

    The rate is kept as an allowance of seconds: each second of waiting takes one off, and each received byte gives ``1
    / bytes_per_s`` back, up to ``patience_s``. A sender may thus be silent for ``patience_s`` seconds, and has to keep
    the rate over a longer time. Time in which no task waits does not count.
    """

    __slots__ = ("_bytes_per_s", "_left_s", "_patience_s", "_since")

    def __init__(self, bytes_per_s: float, patience_s: float) -> None:
        """Make the allowance full. A rate of 0 only demands a byte every ``patience_s`` seconds."""
        self._bytes_per_s = bytes_per_s
        self._patience_s = patience_s
        self._left_s = patience_s
        self._since: float | None = None

    @property
    def left_s(self) -> float:
        """Seconds of waiting that are left; a negative value is how far the sender is behind."""
        return self._left_s if self._since is None else self._left_s - (trio.current_time() - self._since)

    @property
    def waits(self) -> bool:
        """Whether a task waits now."""
        return self._since is not None

    def begin(self) -> float:
        """Begin to wait. Returns the seconds that the wait may take."""
        self._since = trio.current_time()
        return self._left_s

    def came(self, size: int) -> None:
        """End the wait: ``size`` bytes have arrived."""
        earned = size / self._bytes_per_s if self._bytes_per_s else self._patience_s
        self._left_s = min(self._patience_s, self.left_s + earned)
        self._since = None
