"""A bound that requests pass one after the other, and how fast it lets them through."""

from __future__ import annotations

UNBOUNDED = 1 << 62

_WEIGHT = 1 / 64
"""Of the newest interval in the mean: some batches' worth of releases decide it."""

UNKNOWN_S = 1.0
"""What is said of a bound that nobody has waited at yet."""


class Pace:
    """The mean time between two releases, measured only while somebody wants in: the drain rate's inverse."""

    __slots__ = ("_count", "_mean", "since")

    def __init__(self) -> None:
        self.since: float | None = None
        """The last release, while time counts."""
        self._mean = 0.0
        self._count = 0

    def begin(self, now: float) -> None:
        """Somebody waits (or was refused): time counts from now on, if it did not."""
        if self.since is None:
            self.since = now

    def end(self) -> None:
        """Nobody waits any more. What was measured stays."""
        self.since = None

    def tick(self, now: float) -> None:
        """One was released."""
        if self.since is not None:
            self._count += 1
            self._mean += (now - self.since - self._mean) * max(_WEIGHT, 1 / self._count)
            self.since = now

    def wait_s(self, count: int, now: float) -> float:
        """Seconds until so many are released, by what was measured; longer while nothing comes for longer than that."""
        mean, open_s = self._mean, 0.0 if self.since is None else now - self.since
        if open_s > mean:
            mean += (open_s - mean) * max(_WEIGHT, 1 / (self._count + 1))
        return count * mean if self._count else max(UNKNOWN_S, open_s)


class Gate:
    """What one stage (or the whole deployment, ``name`` empty) may have in flight at once.

    ``each`` and ``each_tokens`` are per live replica. A request alone passes whatever it is estimated at: it would wait
    for ever.
    """

    __slots__ = ("_each", "_each_tokens", "down", "limit", "name", "pace", "token_limit", "tokens", "used", "waiting")

    def __init__(self, name: str, each: int | None, each_tokens: int | None = None, *, live: int = 0) -> None:
        self.name = name
        self.limit = 0
        self.token_limit = 0
        self.down = False
        """No replica lives, and none is about to."""
        self.used = 0
        self.tokens = 0
        self.waiting = 0
        """Requests that wait and need this."""
        self.pace = Pace()
        self._each = each
        self._each_tokens = each_tokens
        self.resize(live, coming=False)

    @property
    def counts_tokens(self) -> bool:
        return self._each_tokens is not None

    def resize(self, live: int, *, coming: bool) -> None:
        """So many replicas live; ``coming``: another one is expected in a moment."""
        self.limit = UNBOUNDED if self._each is None and live else (self._each or 0) * live
        self.token_limit = UNBOUNDED if self._each_tokens is None else self._each_tokens * live
        self.down = not live and not coming

    def room(self, tokens: int, held: int = 0) -> bool:
        """Whether one more request may pass, beside ``held`` that will."""
        if self.used + held >= self.limit:
            return False
        return self.tokens + tokens <= self.token_limit or not self.used

    def released(self, now: float) -> None:
        """One was released, while time counts."""
        self.pace.tick(now)
        if not self.waiting:
            self.pace.end()

    def wait_s(self, now: float) -> float:
        """Estimated time until everybody who waits has passed."""
        return self.pace.wait_s(max(1, self.waiting), now)
