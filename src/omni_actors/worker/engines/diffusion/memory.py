"""The memory of a diffusion stage, by which pictures are admitted to work."""

from __future__ import annotations

from collections.abc import Sequence

from omni_actors.platforms.runtime import Memory
from omni_actors.protocol.errors import OmniError, invalid_request
from omni_actors.worker.engines.diffusion.cursor import Cursor, Footprint, Phase

USABLE = 0.9
"""The part of the memory free after loading that pictures may take: footprints are estimates, and an allocator needs
room between its blocks."""


class MemoryBudget:
    """The bytes for pictures under way, and the admitted cursors, which hold them.

    A cursor is admitted when its state fits beside the state of the cursors that are admitted, and when each of them
    can still do its largest unit of work alone. So an admitted cursor never waits for the memory of another one for
    ever. A unit that is interrupted between two slices keeps its memory (:meth:`hold`).

    Args:
        total: The budget in bytes; ``None`` for no bound.
    """

    def __init__(self, total: int | None) -> None:
        self.total = total
        self._whole = total
        self.held = 0
        """The bytes of state that the admitted cursors hold or may come to hold."""
        self._busy = 0
        self._admitted: dict[Cursor, None] = {}
        self._largest = 0

    def check(self, footprint: Footprint, image: str) -> None:
        """Raise an error with status 400 for a picture that does not fit even alone; ``image`` describes it."""
        if self.total is not None and _whole(footprint) > self.total:
            raise never_fits(_whole(footprint), self.total, image)

    def reserve(self, nbytes: int) -> None:
        """Keep so many bytes of the budget for what is no picture, instead of those kept before. Pictures that are
        admitted stay so."""
        if self._whole is not None:
            self.total = max(0, self._whole - nbytes)

    def admitted(self, cursor: Cursor) -> bool:
        """Return whether a cursor is admitted."""
        return cursor in self._admitted

    def admit(self, cursor: Cursor) -> bool:
        """Admit a cursor if it fits; return whether the cursor is admitted."""
        if cursor in self._admitted:
            return True
        state, extra = cursor.footprint.state, extra_bytes(cursor.footprint)
        if self.total is not None and self.held + state + max(self._largest, extra) > self.total:
            return False
        self._admitted[cursor] = None
        self.held += state
        self._largest = max(self._largest, extra)
        return True

    def release(self, cursor: Cursor) -> None:
        """Give back the memory of a cursor that is over. Others are ignored."""
        if cursor not in self._admitted:
            return
        del self._admitted[cursor]
        self.held -= cursor.footprint.state
        if extra_bytes(cursor.footprint) == self._largest:
            self._largest = max((extra_bytes(it.footprint) for it in self._admitted), default=0)

    def hold(self, size: int) -> None:
        """Take bytes for a unit of work that goes on over several slices; a negative size gives them back."""
        self._busy += size

    def fits(self, size: int) -> bool:
        """Return whether so many bytes are free now, beside all state and all units that are interrupted."""
        return self.total is None or self.held + self._busy + size <= self.total

    def fitting(self, cursors: Sequence[Cursor], phase: Phase) -> list[Cursor]:
        """Return the first of these admitted cursors that can work at once in this phase: at least one, unless
        interrupted units hold memory."""
        if self.total is None:
            return list(cursors)
        size, found = 0, []
        for cursor in cursors:
            size += phase_bytes(cursor.footprint, phase)
            if not self.fits(size):
                break
            found.append(cursor)
        return found


def phase_bytes(footprint: Footprint, phase: Phase) -> int:
    """Return the bytes that a phase takes beside the state."""
    if phase is Phase.ENCODE:
        return max(0, footprint.encode - footprint.state)
    return footprint.decode if phase is Phase.DECODE else footprint.step


def extra_bytes(footprint: Footprint) -> int:
    """Return the most bytes that any phase takes beside the state."""
    return max(0, footprint.encode - footprint.state, footprint.step, footprint.decode)


def usable_bytes(memory: Memory) -> int | None:
    """Return the budget for pictures on a device with this memory, measured after loading; ``None`` if unknown."""
    return None if memory.free is None else int(memory.free * USABLE)


def never_fits(needed: int, total: int, image: str) -> OmniError:
    """Return the error for a picture that needs more memory than the stage has."""
    return invalid_request(
        f"{image} needs about {_size(needed)} of memory, and this model's stage has {_size(total)} for pictures; ask "
        "for a smaller one.",
        "size",
    )


def _whole(footprint: Footprint) -> int:
    return footprint.state + extra_bytes(footprint)


def _size(count: int) -> str:
    return f"{-(-count >> 20)} MiB" if count >= 1 << 20 else f"{count} bytes"
