"""The orchestrator: admits requests, binds them to replicas, and knows when they are complete.

It never sees a tensor and never acts per chunk: at admission it tells every stage of the request's subgraph what to do
and where to send its output; from then on data flows from worker to worker, and the record advances on what the
workers report.
"""

from __future__ import annotations

import itertools
import logging
import math
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Never

import trio

from omni_actors.actors.background import background
from omni_actors.actors.process import Launcher, open_launcher
from omni_actors.actors.ref import ActorRef
from omni_actors.actors.supervisor import Supervisor, open_supervisor
from omni_actors.media.questions import begins
from omni_actors.orchestrator.admission import Admission
from omni_actors.orchestrator.binding import bind, bind_whole
from omni_actors.orchestrator.deadlines import Deadlines, Patience
from omni_actors.orchestrator.known import check_known
from omni_actors.orchestrator.recovery import Recovery
from omni_actors.orchestrator.request import RequestObserver, RequestStream
from omni_actors.orchestrator.submission import sections_of, submits_of
from omni_actors.orchestrator.wiring import Wiring
from omni_actors.pipelines.plan import MEDIA_STAGE, Plan
from omni_actors.pipelines.sections import check_sections
from omni_actors.pipelines.subgraph import Subgraph, subgraph
from omni_actors.protocol.errors import (
    ErrorInfo,
    OmniError,
    deadline_exceeded,
    not_resumable,
    stage_unavailable,
)
from omni_actors.protocol.frames import Unlinked
from omni_actors.protocol.request import Request
from omni_actors.protocol.status import AdmissionLoad, ResumeCounts, StageHealth
from omni_actors.stages.control import Control
from omni_actors.stages.lives import restarts
from omni_actors.stages.pool import StagePool
from omni_actors.stages.replica import StageReplica

log = logging.getLogger("omni_actors.orchestrator")

_BATCH_ABOVE = 4
"""With more requests than this in flight, frames of one turn of the loop share a write; below it each goes at once,
since a wake-up more would cost a lone request more latency than the write saves."""


_DRAINING = ErrorInfo(message="The server is shutting down.", type="unavailable_error", code="draining", status=503)


COUNTERS_S = 1.0
"""What a worker gets to say its counters; without them a scrape gives those of the others."""


class StartupError(OmniError):
    """A stage's first start failed: the deployment cannot serve."""


class Orchestrator:
    """Made by :func:`open_orchestrator`. Everything public may be called from any task of its trio loop."""

    def __init__(self, plan: Plan, launcher: Launcher, root: Supervisor, *, log_level: str = "INFO") -> None:
        self.plan = plan
        self.root = root
        """The supervisor of all pools: ``root.tree()`` is the live actor tree."""
        self.vacant = trio.lowlevel.ParkingLot()
        """Woken once for each request that is released."""
        self.changed = trio.lowlevel.ParkingLot()
        """Woken whenever a replica's state or progress changes."""
        self.inflight: dict[int, RequestStream] = {}
        """Admitted and not yet released, by key."""
        self.admitted = 0
        self.draining = False
        self.pools: dict[str, StagePool] = {
            stage.name: StagePool(
                stage,
                tuple(
                    StageReplica(
                        plan,
                        stage,
                        index,
                        launcher,
                        log_level=log_level,
                        on_ready=self._ready,
                        on_unlinked=self._unlinked,
                        on_change=self._change,
                    )
                    for index in range(stage.replicas)
                ),
            )
            for stage in plan.stages
        }
        self.admission = Admission(plan, lambda stage: self.pools[stage].unavailable())
        self._wiring = Wiring(plan, self.pools)
        self.deadlines: Deadlines[RequestStream] = Deadlines(self._expire)
        self.unreleased: Patience[RequestStream] = Patience(plan.limits.release_timeout_s, self._overdue)
        self.recovery = Recovery(plan.limits, self.pools, self._attempt, self._change)
        self.control = Control(self.pools, plan.limits, self.recovery.ready)
        """What an operator does to replicas."""
        self._slots: dict[int, int] = {}
        """Where a request lies in ``deadlines`` until it is terminal."""
        self._keys = itertools.count()
        self._ids = itertools.count(1)
        self._run_id = secrets.token_hex(4)

    # ---- requests

    def open(self, request: Request, observer: RequestObserver | None = None) -> RequestStream:
        """Return the stream of a request, to be entered with ``async with`` (:class:`RequestStream`). ``observer`` is
        told what its caller gets."""
        return RequestStream(self, request, request.id or f"req-{self._run_id}-{next(self._ids)}", observer)

    def subgraph(self, request: Request) -> Subgraph:
        """What a request needs. Raises the client's mistake (400)."""
        return subgraph(self.plan, request.task, request.inputs, request.outputs)

    def foresee(self, outline: Request, *, or_later: bool) -> None:
        """Raises what is sure to be said of a request of which only this is known yet: see :meth:`Admission.foresee`.
        What this deployment cannot do is said when all is known: without ``or_later``."""
        try:
            graph = self.subgraph(outline)
        except OmniError:
            if or_later:
                return
            raise
        self.admission.foresee(outline, graph, or_later=or_later)
        if not or_later:
            for part in graph.parts:
                check_known(outline, self._facts(part.stage.name), part.sections)

    def _facts(self, stage: str) -> Mapping[str, Any]:
        """What a worker of a stage has told of its model when it was ready; nothing before the first one was."""
        return next((replica.info for replica in self.pools[stage].replicas if replica.info), {})

    async def _admit(self, record: RequestStream) -> None:
        """Wait until the request may run, and begin. No checkpoint where it may at once."""
        request = record.request
        limits = self.plan.limits
        graph = self.subgraph(request)
        check_sections(graph, request.params)
        budget = limits.deadline_s if request.deadline_s is None else min(request.deadline_s, limits.deadline_s)
        if not budget > 0:  # NaN too
            raise deadline_exceeded()
        now = trio.current_time()
        deadline = now + budget
        while True:
            seat = self.admission.try_enter(request, graph)
            if seat is None:
                seat = await self.admission.enter(request, graph, deadline)
                now = trio.current_time()
            try:
                record.sections = sections_of(request, self.plan.pipeline.parameters)
                key = next(self._keys)
                replicas, submits = self._bind(record, key, graph, {}, max(0.0, deadline - now))
                break
            except BaseException as error:
                self.admission.leave(seat)
                # Since it was its turn a replica may have been taken away, for another one to come.
                if not (isinstance(error, OmniError) and self.admission.expecting(graph)):
                    raise
        # Nothing raises from here on: what is registered will be released.
        record.admit(key, graph, seat, now, deadline)
        if request.media:
            record.media_life = replicas[MEDIA_STAGE].incarnation
        self.inflight[key] = record
        self.admitted += 1
        self._slots[key] = self.deadlines.add(record, deadline)
        log.debug("admitted key=%d task=%s", key, request.task, extra={"request": record.id})
        self._begin(record, key, replicas, submits)

    def _attempt(self, record: RequestStream, places: Mapping[str, StageReplica]) -> None:
        """Another attempt of a request, with its stages on these replicas if given. Raises ``stage_unavailable``, and
        what else speaks against it."""
        graph = record.subgraph
        assert graph is not None
        key = next(self._keys)
        replicas, submits = self._bind(record, key, graph, places, record.deadline - trio.current_time())
        if record.request.media and replicas[MEDIA_STAGE].incarnation != record.media_life:
            raise not_resumable(MEDIA_STAGE)  # what it had decoded is gone
        log.debug("attempt key=%d", key, extra={"request": record.id})
        assert record.seat is not None
        self.admission.again(record.seat)
        self._begin(record, key, replicas, submits)
        record.feed_again()

    def _bind(
        self, record: RequestStream, key: int, graph: Subgraph, places: Mapping[str, StageReplica], budget_s: float
    ) -> tuple[dict[str, StageReplica], list[tuple[StageReplica, bytes]]]:
        """The replicas of an attempt, and what each is to be told. Raises ``stage_unavailable`` where there are none
        that are all linked."""
        pools, request = self.pools, record.request
        try:
            replicas = bind(pools, request, graph, places)
            submits = submits_of(record, key, graph, replicas, budget_s)
        except OmniError as error:
            whole = bind_whole(pools, request, graph, places) if error.info.code == "stage_unavailable" else None
            if whole is None:
                raise
            replicas, submits = whole, submits_of(record, key, graph, whole, budget_s)
        if request.affinity is not None:
            for name, replica in replicas.items():
                pools[name].keep(request.affinity, replica)
        return replicas, submits

    def _begin(
        self,
        record: RequestStream,
        key: int,
        replicas: dict[str, StageReplica],
        submits: list[tuple[StageReplica, bytes]],
    ) -> None:
        record.begin(key, replicas)
        later = len(self.inflight) > _BATCH_ABOVE
        for replica, data in submits:
            replica.submit(key, record, data, later=later)

    def _terminal(self, record: RequestStream) -> None:
        self.deadlines.discard(record, self._slots.pop(record.number))
        self.recovery.over(record)
        self.unreleased.add(record)

    def _released(self, record: RequestStream) -> None:
        self.unreleased.discard(record)
        del self.inflight[record.number]
        assert record.seat is not None
        self.admission.leave(record.seat)
        if record.request.media:  # no other attempt of it will ask for them
            (process,) = self.pools[MEDIA_STAGE].replicas
            if process.incarnation == record.media_life:
                process.tell("discard", {"owners": [], "clips": [medium.id for medium in record.request.media]})
        self.recovery.released(record)
        if self.vacant:
            self.vacant.unpark()
        if self.draining and not self.inflight:
            self.changed.unpark_all()

    @staticmethod
    def _expire(record: RequestStream) -> None:
        record.fail(deadline_exceeded().info)

    def _overdue(self, record: RequestStream) -> None:
        """A worker does not let go of a request that is over: it does not listen any more, and is replaced. One whose
        output goes to such a worker may only be waiting for that, and gets as long again."""
        assert record.subgraph is not None
        replicas = [replica for pool in self.pools.values() for replica in pool.replicas]
        holding = [replica for replica in replicas if record in replica.requests.values()]
        stages = {replica.stage.name for replica in holding}
        waiting = {edge.source for edge in record.subgraph.edges if edge.target in stages}
        for replica in holding:
            if replica.stage.name not in waiting and replica.sentence is None:
                log.error("%s does not let go of a request; it is killed", replica.name, extra={"request": record.id})
                replica.kill("unreleased", "it did not let go of a request that was over")
        self.unreleased.add(record)

    # ---- replicas

    def _ready(self, replica: StageReplica) -> None:
        self._wiring.wire(replica)
        self.recovery.ready(replica)

    async def _unlinked(self, replica: StageReplica, message: Unlinked) -> None:
        await self._wiring.unlinked(replica, message)
        self.recovery.wake()

    def _change(self) -> None:
        for name, pool in self.pools.items():
            live = sum(replica.takes for replica in pool.replicas)
            coming = pool.replacing or any(replica.live and replica.reserved for replica in pool.replicas)
            self.admission.stage(name, live, coming=coming)
        self.changed.unpark_all()

    def health(self) -> dict[str, StageHealth]:
        """Per stage: live and wanted replicas, states, restarts, last error."""
        return {name: pool.health(self._wiring.unlinked_of(pool)) for name, pool in self.pools.items()}

    @property
    def ready(self) -> bool:
        """Whether every stage has a live replica."""
        return all(health.live for health in self.health().values())

    async def wait_ready(self) -> None:
        """Wait until every replica has been ready once. Raises :class:`StartupError` naming the stage whose first
        start failed. Bounded by the stages' start timeouts."""
        while True:
            replicas = [replica for pool in self.pools.values() for replica in pool.replicas]
            for replica in replicas:
                if not replica.was_ready and replica.last_error is not None:
                    raise StartupError(
                        ErrorInfo(
                            message=f"Stage '{replica.stage.name}' could not start: {replica.last_error.message}",
                            code="startup_failed",
                            stage=replica.stage.name,
                        )
                    )
            if all(replica.was_ready for replica in replicas):
                return
            await self.changed.park()

    def load(self) -> AdmissionLoad:
        """What is admitted, waits, and was refused."""
        return self.admission.load()

    def resumes(self) -> ResumeCounts:
        """Return what became of requests whose worker died."""
        return self.recovery.counts()

    async def counters(self) -> dict[str, list[dict[str, float]]]:
        """The engines' counters, per stage and replica; a replica that cannot answer gives an empty mapping."""
        found: dict[str, list[dict[str, float]]] = {
            name: [{} for _ in pool.replicas] for name, pool in self.pools.items()
        }

        async def ask(replica: StageReplica) -> None:
            try:
                found[replica.stage.name][replica.index] = await replica.query("counters", timeout_s=COUNTERS_S)
            except OmniError:
                return

        async with trio.open_nursery() as nursery:
            for pool in self.pools.values():
                for replica in pool.replicas:
                    nursery.start_soon(ask, replica)
        return found

    async def query_media(self, what: str, args: dict[str, Any]) -> Any:
        """Ask the media process. For :class:`omni_actors.media.client.MediaService`, which bounds the wait itself.
        While the process is being replaced, what begins an operation waits, and what goes on with one does not."""
        pool = self.pools.get(MEDIA_STAGE)
        if pool is None:
            raise stage_unavailable(MEDIA_STAGE)
        (replica,) = pool.replicas
        if begins(what, args):
            while pool.replacing and not (replica.live and not replica.drained):
                await replica.changed.park()
            if replica.drained:
                raise pool.unavailable()
        return await replica.query(what, args, timeout_s=math.inf)

    async def drain(self, grace_s: float) -> None:
        """Refuse new requests and those that wait to be admitted, and wait until those in flight are released, at most
        ``grace_s``; cancel the rest."""
        self._close()
        with trio.move_on_after(grace_s):
            while self.inflight:
                await self.changed.park()
        for record in list(self.inflight.values()):
            record.fail(_DRAINING)

    def _close(self) -> None:
        self.draining = True
        self.admission.close(_DRAINING)

    async def _stop(self, lives: Mapping[StageReplica, ActorRef[Never]]) -> None:
        """End all requests and all workers, side by side. No other life begins: also a replica that is between two of
        them ends."""
        self._close()
        self.recovery.stopping = True
        for record in list(self.inflight.values()):
            record.fail(_DRAINING)

        async def stop(replica: StageReplica, actor: ActorRef[Never]) -> None:
            await replica.stop()
            actor.stop()

        async with trio.open_nursery() as nursery:
            for replica, actor in lives.items():
                nursery.start_soon(stop, replica, actor)


@asynccontextmanager
async def open_orchestrator(plan: Plan, *, log_level: str = "INFO") -> AsyncIterator[Orchestrator]:
    """Start every stage of the plan, side by side, and give the orchestrator at once: await
    :meth:`Orchestrator.wait_ready` before the first request. Leaving the block stops every worker: by message, then
    SIGTERM, then SIGKILL; when it is cancelled the workers are killed. Nothing is left in any case."""
    policy = restarts(plan.limits)
    async with open_launcher() as launcher, open_supervisor("omni", restarts=policy) as root:
        orchestrator = Orchestrator(plan, launcher, root, log_level=log_level)
        async with background() as tasks:
            tasks.start_soon(orchestrator.deadlines.run, name="deadlines")
            tasks.start_soon(orchestrator.unreleased.run, name="deadlines of release")
            tasks.start_soon(orchestrator.recovery.overdue.run, name="deadlines of resumes")
            lives: dict[StageReplica, ActorRef[Never]] = {}
            for name, pool in orchestrator.pools.items():
                supervisor = root.supervisor(name, restarts=policy)
                for replica in pool.replicas:
                    lives[replica] = supervisor.start(replica.begin, name=f"{name}#{replica.index}")
            try:
                yield orchestrator
            finally:
                await orchestrator._stop(lives)
