"""Capacity limits that requests pass on their way, with the rate at which each limit releases requests."""

from __future__ import annotations

UNBOUNDED = 1 << 62
"""A limit that no count reaches."""

_WEIGHT = 1 / 64
"""Weight of the newest interval between two releases in their moving average: a window of about 64 releases, which are
several batches."""

UNKNOWN_S = 1.0
"""Seconds that a limit is expected to take for its next release, before any release was measured there."""


class ReleaseRate:
    """The mean time between two releases of a capacity limit, measured only while a request waits for the limit."""

    __slots__ = ("_count", "_mean", "since")

    def __init__(self) -> None:
        self.since: float | None = None
        """Time of the latest release (or of the start), while the measurement runs; else ``None``."""
        self._mean = 0.0
        self._count = 0

    def start(self, now: float) -> None:
        """Start the measurement if it does not run: a request waits, or was refused."""
        if self.since is None:
            self.since = now

    def stop(self) -> None:
        """Stop the measurement: no request waits. The mean stays."""
        self.since = None

    def record_release(self, now: float) -> None:
        """Count a release, while the measurement runs."""
        if self.since is not None:
            self._count += 1
            self._mean += (now - self.since - self._mean) * max(_WEIGHT, 1 / self._count)
            self.since = now

    def wait_s(self, count: int, now: float) -> float:
        """Return the expected seconds until ``count`` releases, which grow while the next release is overdue."""
        mean, open_s = self._mean, 0.0 if self.since is None else now - self.since
        if open_s > mean:
            mean += (open_s - mean) * max(_WEIGHT, 1 / (self._count + 1))
        return count * mean if self._count else max(UNKNOWN_S, open_s)


class CapacityLimit:
    """The requests, and estimated tokens, that one stage may have in flight at once; or the whole deployment, which has
    an empty ``name``.

    ``each`` and ``each_tokens`` are per live replica; ``None`` is no bound. A request passes the bound of tokens when
    no other request is in the stage, however large its estimate is: otherwise it would wait for ever.
    """

    __slots__ = ("_each", "_each_tokens", "down", "limit", "name", "rate", "token_limit", "tokens", "used", "waiting")

    def __init__(self, name: str, each: int | None, each_tokens: int | None = None, *, live: int = 0) -> None:
        self.name = name
        self.limit = 0
        """Requests that may be in flight at once."""
        self.token_limit = 0
        """Estimated tokens of these requests."""
        self.down = False
        """Whether no replica is live and none is expected in a moment."""
        self.used = 0
        """Requests in flight."""
        self.tokens = 0
        """Estimated tokens of the requests in flight."""
        self.waiting = 0
        """Requests in the wait queue that need this limit's capacity."""
        self.rate = ReleaseRate()
        self._each = each
        self._each_tokens = each_tokens
        self.resize(live, coming=False)

    @property
    def counts_tokens(self) -> bool:
        """Whether tokens are bounded too."""
        return self._each_tokens is not None

    def resize(self, live: int, *, coming: bool) -> None:
        """Set the limit for ``live`` replicas. ``coming``: another replica is expected in a moment."""
        self.limit = UNBOUNDED if self._each is None and live else (self._each or 0) * live
        self.token_limit = UNBOUNDED if self._each_tokens is None else self._each_tokens * live
        self.down = not live and not coming

    def has_capacity(self, tokens: int, held: int = 0) -> bool:
        """Return whether one more request of so many tokens may pass, beside ``held`` requests that capacity is kept
        for."""
        if self.used + held >= self.limit:
            return False
        return self.tokens + tokens <= self.token_limit or not self.used

    def record_release(self, now: float) -> None:
        """Count a release in the rate, and stop the measurement when no request waits any more."""
        self.rate.record_release(now)
        if not self.waiting:
            self.rate.stop()

    def wait_s(self, now: float) -> float:
        """Return the expected seconds until every waiting request has passed."""
        return self.rate.wait_s(max(1, self.waiting), now)
