"""Whether a worker that lives also moves: the serving process's side of its liveness page.

Nobody asks the worker anything: it writes down when it last moved and what it is doing, the plan says how long that may
take, and a :class:`Watch` sleeps until then. A worker without work is not watched: it may stand still for ever.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import trio

from omni_actors.pipelines.plan import StagePlan
from omni_actors.protocol.liveness import HEARTBEAT_S, PAGE_BYTES, WORDS, Activity

GRACE_S = 0.5
"""A worker that is late is looked at again after so long, so that nobody is killed for a moment in which this process
itself, or the machine, stood still."""

WAIT_BUDGET_S = 10.0
"""A worker that holds requests and waits is late after so many seconds, or after its step budget if that is shorter (at
least two heartbeats)."""

_NAMES = {
    Activity.LOADING: "before its first turn",
    Activity.WAITING: "waiting",
    Activity.WORKING: "in a step",
    Activity.COMPILING: "in one of its first steps",
}


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """What a page says. ``moved`` is in seconds of the clock that the worker writes down."""

    turns: int
    activity: Activity
    moved: float

    def __str__(self) -> str:
        return _NAMES[self.activity]


class HeartbeatSource(Protocol):
    """Where a worker's beats are read."""

    def read(self) -> Heartbeat: ...


class LivenessPage:
    """The page of one life of a worker: made before it, and mapped here as long as it lasts."""

    def __init__(self) -> None:
        """Raises :class:`OSError` when there is no descriptor or memory for it; nothing is left then."""
        self.fd = os.memfd_create("omni-liveness", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        """To be inherited by the worker; :meth:`handed_over` closes it here."""
        try:
            os.ftruncate(self.fd, PAGE_BYTES)
            # What is mapped here cannot be taken away: a page that shrinks would kill its readers.
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            self._map = mmap.mmap(self.fd, PAGE_BYTES, prot=mmap.PROT_READ)
        except OSError:
            self.handed_over()
            raise
        self._words = memoryview(self._map).cast("Q")[:WORDS]

    def read(self) -> Heartbeat:
        turns, activity, moved = self._words
        # What is no activity comes from a worker that writes over its memory: it is still one that has to move.
        return Heartbeat(turns, Activity(activity) if activity in _NAMES else Activity.WORKING, moved / 1e9)

    def handed_over(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def close(self) -> None:
        self.handed_over()
        self._words.release()
        self._map.close()


def budget_s(stage: StagePlan, activity: Activity) -> float:
    """How long a worker of this stage that is ready, and has work, may go without a sign of life while it does that.
    (Loading has the start timeout. One that says it loads has said it is ready, and not taken its first turn yet.)"""
    match activity:
        case Activity.COMPILING:
            return max(stage.compile_budget_s, stage.step_budget_s)
        case Activity.WAITING:
            return max(2 * HEARTBEAT_S, min(stage.step_budget_s, WAIT_BUDGET_S))
        case Activity.LOADING | Activity.WORKING:
            return stage.step_budget_s


class Watch:
    """Watches one life of a worker. ``has_work`` says whether it has anything to do. ``clock`` is the worker's own.
    For how long this process overslept, because it stood still itself, counts against nobody."""

    def __init__(
        self,
        stage: StagePlan,
        source: HeartbeatSource,
        has_work: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stage = stage
        self._source = source
        self._has_work = has_work
        self._clock = clock
        self._since = clock()
        self._shortest_s = min(budget_s(stage, activity) for activity in Activity)
        self._idle = trio.lowlevel.ParkingLot()

    def work_begins(self) -> None:
        """The worker gets something to do after it had nothing: its time counts from now."""
        self._since = self._clock()
        if self._idle:
            self._idle.unpark()

    async def until_stuck(self) -> str:
        """Sleep until the worker has work and has not moved for longer than it may; say for how long, and in what."""
        while True:
            if not self._has_work():
                await self._idle.park()
                continue
            beat = self._source.read()
            # A page is its worker's to write, and nobody has moved in the future.
            begun = max(beat.moved if beat.moved <= self._clock() else 0.0, self._since)
            left = begun + budget_s(self._stage, beat.activity) - self._clock()
            # What it does next may have a shorter budget, which cannot be over before that.
            pause_s = min(left, self._shortest_s) if left > 0 else GRACE_S
            due = self._clock() + pause_s
            await trio.sleep(pause_s)
            if (late := self._clock() - due) > GRACE_S:
                # This process stood still, and the worker perhaps with it (a machine that was suspended, say).
                self._since = max(self._since, begun + late)
            elif left <= 0 and self._has_work() and self._source.read() == beat:
                return f"no sign of life for {self._clock() - begun:.1f} s, {beat}"
