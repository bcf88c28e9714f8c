"""The serving process's side of a worker's liveness page, which shows whether a living worker makes progress.

No message is sent to the worker. The worker writes its activity and the time of its last progress, the plan says how
long each activity may take, and a :class:`Watch` sleeps until then. A worker without work is not watched, and may stand
still for ever.
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
"""Seconds after which a late worker is looked at again.

So no worker is killed for a moment in which the serving process, or the machine, stood still."""

WAIT_BUDGET_S = 10.0
"""Seconds after which a waiting worker with requests is late.

A shorter step budget counts instead, but at least two heartbeats."""

_NAMES = {
    Activity.LOADING: "before its first turn",
    Activity.WAITING: "waiting",
    Activity.WORKING: "in a step",
    Activity.COMPILING: "compiling, or in one of its first steps",
}


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The contents of a page. ``moved`` is the time of the last progress, in seconds of the worker's clock."""

    turns: int
    activity: Activity
    moved: float

    def __str__(self) -> str:
        return _NAMES[self.activity]


class HeartbeatSource(Protocol):
    """A source of a worker's heartbeats."""

    def read(self) -> Heartbeat: ...


class LivenessPage:
    """The page of one incarnation, made before its worker, and mapped here until the incarnation ends."""

    def __init__(self) -> None:
        """Make a page. Raises :class:`OSError`, and leaves nothing, when there is no descriptor or memory."""
        self.fd = os.memfd_create("omni-liveness", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        """The descriptor that the worker inherits; :meth:`handed_over` closes it here."""
        try:
            os.ftruncate(self.fd, PAGE_BYTES)
            # A page that shrinks would kill its readers, so the mapped page cannot shrink.
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            self._map = mmap.mmap(self.fd, PAGE_BYTES, prot=mmap.PROT_READ)
        except OSError:
            self.handed_over()
            raise
        self._words = memoryview(self._map).cast("Q")[:WORDS]

    def read(self) -> Heartbeat:
        turns, activity, moved = self._words
        # An unknown activity comes from a worker that overwrites its memory; such a worker must make progress too.
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
    """Return the seconds for which a ready worker with work may show no progress during an activity.

    (The start timeout bounds loading. A ready worker whose page still says "loading" has not taken its first turn.)
    """
    match activity:
        case Activity.COMPILING:
            return max(stage.compile_budget_s, stage.step_budget_s)
        case Activity.WAITING:
            return max(2 * HEARTBEAT_S, min(stage.step_budget_s, WAIT_BUDGET_S))
        case Activity.LOADING | Activity.WORKING:
            return stage.step_budget_s


class Watch:
    """A watch over one incarnation of a worker.

    ``has_work`` says whether the worker has work. ``clock`` is the worker's own clock. Time for which the serving
    process itself stood still is not counted against the worker.
    """

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
        """Start the worker's time: it gets work after it had none."""
        self._since = self._clock()
        if self._idle:
            self._idle.unpark()

    async def until_stuck(self) -> str:
        """Sleep until the worker with work shows no progress for too long; return a description with time and
        activity."""
        while True:
            if not self._has_work():
                await self._idle.park()
                continue
            beat = self._source.read()
            # The worker writes the page, and no progress lies in the future.
            begun = max(beat.moved if beat.moved <= self._clock() else 0.0, self._since)
            left = begun + budget_s(self._stage, beat.activity) - self._clock()
            # The next activity may have a shorter budget, which cannot be over before that.
            pause_s = min(left, self._shortest_s) if left > 0 else GRACE_S
            due = self._clock() + pause_s
            await trio.sleep(pause_s)
            if (late := self._clock() - due) > GRACE_S:
                # This process stood still, and perhaps the worker too (in a suspended machine, say).
                self._since = max(self._since, begun + late)
            elif left <= 0 and self._has_work() and self._source.read() == beat:
                return f"no sign of life for {self._clock() - begun:.1f} s, {beat}"
