"""The order in which pictures are worked on: priority, then what ends soonest, and nobody starves."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from omni_actors.worker.engines.diffusion.cursor import Cursor

SHARE = 0.3
"""The share of the device's time that a picture is sure of, however many shorter ones come. A long picture beside a
closed loop of short ones takes at most 1 / SHARE of the time that it takes alone."""

PATIENCE = 4
"""Steps of its own that a picture may be owed before it is starving: a picture of a few steps beside a long one is not
interrupted."""


class Fairness:
    """The accounts of service of the pictures under way.

    A picture is owed :data:`SHARE` of the time in which it could work and did not, and pays while it works. A picture
    that is owed :data:`PATIENCE` of its steps is *starving* and comes before all others of its priority, until it is
    owed nothing.

    Args:
        clock: The time in seconds, for deadlines.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._owed: dict[Cursor, float] = {}
        self._step_s: dict[Cursor, float] = {}
        self._starving: set[Cursor] = set()
        self._due: dict[Cursor, float] = {}
        self._arrival: dict[Cursor, int] = {}
        self._arrivals = 0

    def enter(self, cursor: Cursor) -> None:
        """Take a picture into the accounts."""
        self._arrival[cursor] = self._arrivals
        self._arrivals += 1
        self._owed[cursor] = 0.0
        if cursor.work.deadline_s is not None:
            self._due[cursor] = self._clock() + cursor.work.deadline_s

    def leave(self, cursor: Cursor) -> None:
        """Drop a picture from the accounts. Unknown pictures are ignored."""
        self._owed.pop(cursor, None)
        self._step_s.pop(cursor, None)
        self._due.pop(cursor, None)
        self._arrival.pop(cursor, None)
        self._starving.discard(cursor)

    def order(self, cursors: Iterable[Cursor]) -> list[Cursor]:
        """Return the cursors, the most urgent first."""
        now = self._clock()
        return sorted(cursors, key=lambda cursor: self._urgency(cursor, now))

    def worked(self, cursors: Iterable[Cursor], waiting: Iterable[Cursor], seconds: float) -> None:
        """Note a unit of work.

        Args:
            cursors: The pictures that shared the unit.
            waiting: The pictures that could have worked, and did not.
            seconds: The time that the unit took.
        """
        for cursor in cursors:
            if cursor not in self._owed:
                continue
            self._step_s[cursor] = seconds
            owed = self._owed[cursor] = max(0.0, self._owed[cursor] - seconds * (1 - SHARE))
            if not owed:
                self._starving.discard(cursor)
        for cursor in waiting:
            if cursor not in self._owed:
                continue
            owed = self._owed[cursor] = self._owed[cursor] + seconds * SHARE
            if owed > PATIENCE * self._step_s.get(cursor, seconds):
                self._starving.add(cursor)

    def _urgency(self, cursor: Cursor, now: float) -> tuple[object, ...]:
        due = self._due.get(cursor)
        left = None if due is None else due - now
        needed = cursor.steps - cursor.step
        tight = left is not None and left < 2 * needed * self._step_s.get(cursor, 0.0)
        starving = cursor in self._starving
        return (
            cursor.work.priority,
            not starving,
            -self._owed[cursor] if starving else 0.0,
            not tight,
            cursor.remaining,
            self._arrival[cursor],
        )
