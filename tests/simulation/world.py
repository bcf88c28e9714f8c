"""One run of a schedule: what is substituted, and what everybody in it shares."""

from __future__ import annotations

import random
from collections import Counter
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import trio
import trio.testing

from omni_actors.orchestrator import Orchestrator, RequestStream
from omni_actors.orchestrator.estimate import event_bytes
from omni_actors.pipelines.plan import DeploymentLimits
from omni_actors.protocol.request import Event, MediaChunk, StepProgress

from .deployments import plan_of
from .schedule import Schedule

if TYPE_CHECKING:
    from .launcher import SimChild


class Crash(BaseException):
    """A simulated worker ends where it is, as if by a signal."""


@dataclass(slots=True)
class World:
    """What the parts of one run share. ``chance`` is the run's seeded scheduler: whoever decides anything asks it."""

    schedule: Schedule
    tracing: bool = False
    chance: random.Random = field(init=False)
    hits: Counter[str] = field(default_factory=Counter)
    """Faults that took effect, by kind."""
    violations: list[str] = field(default_factory=list)
    trace: list[str] = field(default_factory=list)
    children: dict[tuple[str, int], SimChild] = field(default_factory=dict)
    """The latest child of each replica."""
    spawned: list[SimChild] = field(default_factory=list)
    crashed: set[str] = field(default_factory=set)
    """Ids of requests that have had their one crash."""
    image_seeds: dict[str, int | None] = field(default_factory=dict)
    """The seeds of the requests' pictures, as the first worker got them, by the requests' ids."""
    streams: set[RequestStream] = field(default_factory=set)
    """Those that clients hold."""
    orchestrator: Orchestrator | None = None
    clock: trio.testing.MockClock = field(init=False)
    commands: set[str] = field(default_factory=set)
    """What an operator has done."""
    breaks: int = 0
    """Links that were broken while both ends lived."""
    deaths: Counter[str] = field(default_factory=Counter)
    """Workers that ended and were not asked to, by stage."""
    inflicted: Counter[str] = field(default_factory=Counter)
    """Those of them that no request was to blame for."""
    _plans: dict[tuple[str, int], set[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.schedule.seed)

    @property
    def limits(self) -> DeploymentLimits:
        return plan_of(self.schedule.deployment).limits

    @property
    def seed(self) -> int:
        return self.schedule.seed

    def hit(self, kind: str) -> None:
        self.hits[kind] += 1
        self.note(f"fault: {kind}")

    def note(self, text: str) -> None:
        if self.tracing:
            now = f"{trio.current_time():9.4f}" if trio.lowlevel.in_trio_run() else "   after "
            self.trace.append(f"{now}  {text}")

    def violate(self, what: str) -> None:
        """An invariant does not hold."""
        self.note(f"VIOLATION: {what}")
        if what not in self.violations:
            self.violations.append(what)

    def plan_for_next(self, stage: str, replica: int, kind: str) -> None:
        """What befalls the next life of a replica."""
        self._plans.setdefault((stage, replica), set()).add(kind)

    def plans_for(self, stage: str, replica: int) -> frozenset[str]:
        return frozenset(self._plans.pop((stage, replica), ()))

    def where(self) -> str:
        """Who still has something to do, for a run that hangs."""
        if self.orchestrator is None:
            return "before it has started"
        waiting = [f"{record.id} is {record.state.value}" for record in self.orchestrator.inflight.values()]
        lives = [f"{child.name} has taken {child.turns} turns" for child in self.spawned if child.death is None]
        return "; ".join(waiting + lives)

    def forget(self) -> None:
        """Let go of everything that lived."""
        self.children.clear()
        self.spawned.clear()
        self.streams.clear()
        self.orchestrator = None

    # ---- looks at a worker, around each of its turns

    def bygone(self, child: SimChild) -> frozenset[int]:
        """Keys in a worker that its replica knows no live attempt of: the worker has been told, or is being told."""
        assert self.orchestrator is not None
        assert child.worker is not None
        replica = self.orchestrator.pools[child.stage].replicas[child.replica]
        found: set[int] = set()
        if replica.pid != child.pid or replica._channel is None or replica._channel._out:
            return frozenset()  # its life is over, and its end on its way; or what it is told has no room to get there
        for key in child.worker._out.requests:
            record = replica.requests.get(key)
            if record is None or not record.state.live or record.key != key:  # type: ignore[attr-defined]
                found.add(key)
        return frozenset(found)

    def after_turn(self, child: SimChild, bygone: frozenset[int]) -> None:
        """What has to hold after a turn of a worker's loop."""
        worker = child.worker
        assert worker is not None
        out = worker._out
        # Abort goes first: whoever was told before a turn has let go after it.
        for key in bygone & out.requests.keys():
            if not worker.stopping:
                self.violate(f"{child.stage} goes on with request {out.requests[key].request_id} after its end")
        for request in out.requests.values():
            for route in request.routes:
                if route.edge.mode == "chunk" and route.seq + route.queued - route.acked > route.edge.capacity:
                    self.violate(f"{child.stage} has more chunks under way than edge {route.edge.port} has credits")
        if len(worker._intake.early) > 64:
            self.violate(f"{child.stage} keeps chunks of {len(worker._intake.early)} requests that it does not know")
        if worker._control._unsent and len(worker._control._unsent) > 1 << 20:
            self.violate(f"{child.stage} has {len(worker._control._unsent)} bytes for the serving process")
        self.look()

    def look(self) -> None:
        """What has to hold in the serving process at any time."""
        orchestrator = self.orchestrator
        assert orchestrator is not None
        limits = self.limits
        if len(orchestrator.inflight) > limits.max_inflight:
            self.violate(f"{len(orchestrator.inflight)} requests in flight, {limits.max_inflight} are allowed")
        for stream in self.streams:
            waiting = sum(map(event_bytes, stream._events))
            if waiting > limits.sink_bytes:
                self.violate(f"{waiting} bytes wait for a client, {limits.sink_bytes} are allowed")
            for (kind, index), count in Counter(map(_latest_only, stream._events)).items():
                if count > 1 and kind:
                    self.violate(f"{count} events of {kind} of picture {index} wait for a client")


def _latest_only(event: Event) -> tuple[str, int]:
    """The kind and the picture of an event of which only the latest may wait; else an empty kind."""
    if type(event) is StepProgress:
        return "progress", event.index
    if type(event) is MediaChunk and event.meta.get("preview"):
        return "preview", event.meta["index"]
    return "", 0


WORLD: ContextVar[World] = ContextVar("world")
