"""The memory of a diffusion stage, by which pictures are admitted to work."""

from __future__ import annotations

from collections.abc import Sequence

from omni_actors.protocol.errors import OmniError, invalid_request
from omni_actors.worker.engines.diffusion.cursor import Cursor, Footprint, Phase


class MemoryBudget:
    """The bytes for pictures under way, and the admitted cursors, which hold them.

    A cursor is admitted when its state fits beside the state of the cursors that are admitted, and when each of them
    can still make its largest step alone. So an admitted cursor never waits for memory of another one for ever.

    Args:
        total: The budget in bytes; ``None`` for no bound.
    """

    def __init__(self, total: int | None) -> None:
        self.total = total
        self._admitted: dict[Cursor, None] = {}

    def check(self, footprint: Footprint, image: str) -> None:
        """Raise an error with status 400 for a picture that does not fit even alone; ``image`` describes it."""
        if self.total is not None and footprint.peak > self.total:
            raise never_fits(footprint, self.total, image)

    @property
    def held(self) -> int:
        """The bytes of state that the admitted cursors hold or may come to hold."""
        return sum(cursor.footprint.state for cursor in self._admitted)

    def admit(self, cursor: Cursor) -> bool:
        """Admit a cursor if it fits; return whether the cursor is admitted."""
        if cursor in self._admitted:
            return True
        if self.total is not None:
            peaks = [_extra(it.footprint) for it in (*self._admitted, cursor)]
            if self.held + cursor.footprint.state + max(peaks) > self.total:
                return False
        self._admitted[cursor] = None
        return True

    def release(self, cursor: Cursor) -> None:
        """Give back the memory of a cursor that is over. Others are ignored."""
        self._admitted.pop(cursor, None)

    def fitting(self, cursors: Sequence[Cursor], phase: Phase) -> list[Cursor]:
        """Return the first cursors that can work at once in this phase: at least one."""
        if self.total is None:
            return list(cursors)
        room = self.total - self.held
        found: list[Cursor] = []
        for cursor in cursors:
            room -= phase_bytes(cursor.footprint, phase)
            if found and room < 0:
                break
            found.append(cursor)
        return found


def phase_bytes(footprint: Footprint, phase: Phase) -> int:
    """Return the bytes that a phase takes beside the state."""
    if phase is Phase.ENCODE:
        return max(0, footprint.encode - footprint.state)
    return footprint.decode if phase is Phase.DECODE else footprint.step


def never_fits(footprint: Footprint, total: int, image: str) -> OmniError:
    """Return the error for a picture that needs more memory than the stage has."""
    need, have = -(-footprint.peak >> 20), total >> 20
    return invalid_request(
        f"{image} needs about {need} MiB, and this model's stage has {have} MiB for pictures; ask for a smaller one.",
        "size",
    )


def _extra(footprint: Footprint) -> int:
    return max(0, footprint.encode - footprint.state, footprint.step, footprint.decode)
