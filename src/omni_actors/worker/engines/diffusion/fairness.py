"""The order in which pictures are worked on: priority, deadline, then what ends soonest; and nobody starves."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from omni_actors.worker.engines.diffusion.cursor import Cursor, Phase

SHARE = 1 / 3
"""The share of the device's time that a waiting picture is owed, however many shorter ones come."""

PATIENCE_STEPS = 2.0
PATIENCE_PART = 0.1
"""Time that a picture may be owed before the picture is starving: so many of its own steps, and such a part of its
whole work. A short picture beside a long one is not interrupted; a long picture beside a closed loop of short ones
takes less than four times as long as alone."""

AGEING_S = 10.0
"""Seconds of owed time for which a picture counts as one priority more urgent; twice as many for two. So a picture of
the next priority waits for 30 s at first, and has its share from then on."""

SMOOTHING = 0.2
"""The weight of the newest measurement in the averages of time per unit of work."""


@dataclass(slots=True)
class _Account:
    """The account of a picture. Seconds of the clock."""

    arrival: int
    due: float | None
    owed: float = 0.0


class Fairness:
    """The accounts of the pictures in the engine.

    A picture is owed :data:`SHARE` of the time in which it could work and did not, and pays while it works. A picture
    that is owed more than its patience is *starving* and comes before all others of its priority. So a step of a
    starving picture comes every now and then, and the pictures that end sooner go on in between.

    Args:
        clock: The time in seconds, for deadlines.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._accounts: dict[Cursor, _Account] = {}
        self._pace: dict[Phase, float] = {}
        self._arrivals = 0

    def enter(self, cursor: Cursor) -> None:
        """Take a picture into the accounts."""
        deadline_s = cursor.work.deadline_s
        self._accounts[cursor] = _Account(self._arrivals, None if deadline_s is None else self._clock() + deadline_s)
        self._arrivals += 1

    def leave(self, cursor: Cursor) -> None:
        """Drop a picture from the accounts. Unknown pictures are ignored."""
        self._accounts.pop(cursor, None)

    def order(self, cursors: Iterable[Cursor]) -> list[Cursor]:
        """Return the cursors, the most urgent first."""
        now = self._clock()
        return sorted(cursors, key=lambda cursor: self._urgency(cursor, now))

    def by_arrival(self, cursors: Iterable[Cursor]) -> list[Cursor]:
        """Return the cursors by priority, and by arrival within a priority."""
        return sorted(cursors, key=lambda cursor: (cursor.work.priority, self._accounts[cursor].arrival))

    def priority(self, cursor: Cursor) -> int:
        """Return the picture's priority after ageing: the lower the earlier."""
        return cursor.work.priority - int(self._accounts[cursor].owed / AGEING_S)

    def starving(self, cursor: Cursor) -> bool:
        """Return whether a picture is owed more time than it can be patient for."""
        return self._accounts[cursor].owed > self._patience_s(cursor)

    def remaining_s(self, cursor: Cursor) -> float:
        """Return an estimate of the time that the picture still needs in this stage, at the pace measured so far."""
        pace, weight = self._pace, cursor.weight
        needed = pace.get(Phase.DECODE, 0.0) * weight
        if cursor.phase is not Phase.DECODE:
            needed += pace.get(Phase.DENOISE, 1.0) * weight * (cursor.steps - cursor.step)
            if cursor.phase is not Phase.DENOISE:
                needed += pace.get(Phase.ENCODE, 0.0)
        return needed

    def worked(self, cursors: Iterable[Cursor], waiting: Iterable[Cursor], seconds: float) -> None:
        """Note a unit of work.

        Args:
            cursors: The pictures that shared the unit.
            waiting: The pictures that could have worked, and did not.
            seconds: The time that the unit took.
        """
        accounts = self._accounts
        paid, earned = seconds * (1 - SHARE), seconds * SHARE
        for cursor in cursors:
            if (account := accounts.get(cursor)) is not None:
                account.owed = max(0.0, account.owed - paid)
        for cursor in waiting:
            if (account := accounts.get(cursor)) is not None:
                account.owed += earned

    def measured(self, phase: Phase, cursors: Iterable[Cursor], seconds: float) -> None:
        """Note the time of one forward, or of a whole encoding or decoding, for estimates."""
        weight = 1 if phase is Phase.ENCODE else max((cursor.weight for cursor in cursors), default=1)
        newest = seconds / max(1, weight)
        before = self._pace.get(phase, newest)
        self._pace[phase] = before + SMOOTHING * (newest - before)

    def _patience_s(self, cursor: Cursor) -> float:
        pace, weight = self._pace, cursor.weight
        step_s = pace.get(Phase.DENOISE, 0.0) * weight
        ends_s = pace.get(Phase.ENCODE, 0.0) + pace.get(Phase.DECODE, 0.0) * weight
        whole_s = ends_s + step_s * cursor.steps
        return PATIENCE_STEPS * (step_s or ends_s) + PATIENCE_PART * whole_s if whole_s else math.inf

    def _urgency(self, cursor: Cursor, now: float) -> tuple[float, ...]:
        account = self._accounts[cursor]
        remaining = self.remaining_s(cursor)
        starving = self.starving(cursor)
        due = math.inf
        if account.due is not None and self._pace:
            left = account.due - now
            # A deadline far away needs no hurry; one that is lost by far would cost others theirs.
            due = account.due if remaining / 2 <= left < 2 * remaining else math.inf
        return (
            self.priority(cursor),
            -account.owed if starving else 0.0,
            due,
            remaining,
            account.arrival,
        )
