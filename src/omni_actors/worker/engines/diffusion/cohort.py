"""Request batching, to compare with: what servers do that cannot let a picture join between two steps."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

from omni_actors.worker.engines.diffusion.cursor import Cursor, Phase
from omni_actors.worker.engines.diffusion.fairness import Fairness


class Cohort:
    """The requests that share forwards when joining is off: those that waited when the cohort began and are equal to
    the first one in size, steps and guidance, as many as fit one forward. A cohort runs to its end before the next.

    Args:
        fairness: The accounts of the pictures, for their order of arrival.
        most: The rows of a forward.
    """

    def __init__(self, fairness: Fairness, most: int) -> None:
        self._fairness = fairness
        self._most = most
        self._members: set[int] = set()
        self._rows: dict[Hashable, int] = {}

    def of(self, waiting: Iterable[Cursor], running: Iterable[int]) -> list[Cursor]:
        """Return the cursors that may work, first come, first served.

        Args:
            waiting: All cursors that have work to do.
            running: The keys of all requests in the engine.
        """
        self._members &= set(running)
        cursors = self._fairness.by_arrival(waiting)
        if not self._members:
            self._gather(cursors)
        found = [cursor for cursor in cursors if cursor.key in self._members]
        # All of them are encoded before their first step, and decoded behind their last one.
        return [it for it in found if it.phase is Phase.ENCODE] or sorted(
            found, key=lambda it: it.phase is Phase.DECODE
        )

    def learn(self, cursor: Cursor, rows: int) -> None:
        """Note the rows that a picture takes of a forward."""
        self._rows[_likeness(cursor)] = rows

    def _gather(self, cursors: Sequence[Cursor]) -> None:
        room = self._most
        for cursor in cursors:
            if _likeness(cursor) != _likeness(cursors[0]) or cursor.key in self._members:
                continue
            room -= self._rows.get(_likeness(cursor), 1) * cursor.image.n
            if room < 0 and self._members:
                return
            self._members.add(cursor.key)


def _likeness(cursor: Cursor) -> Hashable:
    image = cursor.image
    return (cursor.width, cursor.height, cursor.steps, image.guidance, image.true_guidance, image.n)
