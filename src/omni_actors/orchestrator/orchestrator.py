"""The orchestrator: it admits requests, binds them to replicas, and notices when they are complete.

The orchestrator never sees a tensor and never acts per chunk. At admission it tells every stage of the request's
subgraph what to do and where to send its output. From then on data flows from worker to worker, and the request's
record advances on the reports of the workers. The requests themselves are in
:mod:`~omni_actors.orchestrator.lifecycle`; this module has the deployment: pools, links, health, start and end.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import trio

from omni_actors.actors.background import background
from omni_actors.actors.process import Launcher, open_launcher
from omni_actors.actors.supervisor import Supervisor, open_supervisor
from omni_actors.orchestrator.adapters import LoadedAdapters
from omni_actors.orchestrator.known import check_known
from omni_actors.orchestrator.lifecycle import RequestLifecycle
from omni_actors.orchestrator.owner import RequestObserver
from omni_actors.orchestrator.request import RequestStream
from omni_actors.orchestrator.wiring import Wiring
from omni_actors.pipelines.plan import Plan
from omni_actors.pipelines.subgraph import Subgraph, subgraph
from omni_actors.protocol.errors import ErrorInfo, OmniError
from omni_actors.protocol.frames import Unlinked
from omni_actors.protocol.request import Request
from omni_actors.protocol.status import AdmissionLoad, ResumeCounts, StageHealth
from omni_actors.stages.control import Control
from omni_actors.stages.history import restart_policy
from omni_actors.stages.pool import StagePool
from omni_actors.stages.replica import StageReplica

_DRAINING = ErrorInfo(message="The server is shutting down.", type="unavailable_error", code="draining", status=503)


COUNTERS_S = 1.0
"""Seconds that a worker has to report its counters; without them a scrape shows those of the other workers."""


class StartupError(OmniError):
    """The error of a deployment that cannot serve, because the first start of a stage failed."""


class Orchestrator:
    """A deployment, made by :func:`open_orchestrator`. Public methods may be called from any task of the orchestrator's
    trio loop."""

    def __init__(self, plan: Plan, launcher: Launcher, root: Supervisor, *, log_level: str = "INFO") -> None:
        self.plan = plan
        self.root = root
        """The supervisor of all pools: ``root.tree()`` is the live actor tree."""
        self.changed = trio.lowlevel.ParkingLot()
        """Woken whenever a replica's state or progress changes."""
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
        self.requests = RequestLifecycle(plan, self.pools, self._change)
        self.admission = self.requests.admission
        self.recovery = self.requests.recovery
        self.control = Control(self.pools, plan.limits, self.recovery.replica_ready)
        """The commands of an operator to replicas."""
        self.adapters = LoadedAdapters(self.pools)
        """The LoRA adapters that an operator loads while the deployment runs."""
        self._wiring = Wiring(plan, self.pools)
        self._ids = itertools.count(1)
        self._run_id = secrets.token_hex(4)

    # ---- requests

    def open(self, request: Request, observer: RequestObserver | None = None) -> RequestStream:
        """Return the stream of a request, to be entered with ``async with`` (:class:`RequestStream`). ``observer`` is
        told what its caller gets."""
        id = request.id or f"req-{self._run_id}-{next(self._ids)}"
        return RequestStream(self.requests, request, id, observer, max_waiting_bytes=self.plan.limits.sink_bytes)

    @property
    def inflight(self) -> Mapping[int, RequestStream]:
        """Requests that are admitted and not yet released, by number."""
        return self.requests.inflight

    @property
    def vacant(self) -> trio.lowlevel.ParkingLot:
        """A place to wait at for the release of a request: each wakes one waiter."""
        return self.requests.vacant

    def subgraph(self, request: Request) -> Subgraph:
        """Return the stages that a request needs. Raises the client's mistake (400)."""
        return subgraph(self.plan, request.task, request.inputs, request.outputs)

    def reject_early(self, outline: Request, *, priority_may_drop: bool) -> None:
        """Raise the error with which a request is certain to be refused, as far as the request is known: see
        :meth:`Admission.reject_early <omni_actors.orchestrator.admission.Admission.reject_early>`. With
        ``priority_may_drop`` more may become known of the request, so that nothing is said of its contents yet."""
        try:
            graph = self.subgraph(outline)
        except OmniError:
            if priority_may_drop:
                return
            raise
        self.admission.reject_early(outline, graph, priority_may_drop=priority_may_drop)
        if not priority_may_drop:
            for part in graph.parts:
                check_known(outline, self.facts(part.stage.name), part.sections)

    def facts(self, stage: str) -> Mapping[str, Any]:
        """Return the facts that a worker of a stage reported of its model when it became ready; none before the first
        worker was."""
        return next((replica.info for replica in self.pools[stage].replicas if replica.info), {})

    # ---- replicas

    def _ready(self, replica: StageReplica) -> None:
        self._wiring.wire(replica)
        self.adapters.restore(replica)
        self.recovery.replica_ready(replica)

    async def _unlinked(self, replica: StageReplica, message: Unlinked) -> None:
        await self._wiring.unlinked(replica, message)
        self.recovery.resume_waiting()

    def _change(self) -> None:
        for name, pool in self.pools.items():
            live = sum(replica.accepts_requests for replica in pool.replicas)
            coming = pool.replacing or any(replica.live and replica.quarantined for replica in pool.replicas)
            self.admission.stage(name, live, coming=coming)
        self.changed.unpark_all()

    def health(self) -> dict[str, StageHealth]:
        """Return the health of each stage: live and wanted replicas, states, restarts, last error."""
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
        """Return the requests that are admitted, that wait, and that were refused."""
        return self.admission.load()

    def resumes(self) -> ResumeCounts:
        """Return what became of requests whose worker died."""
        return self.recovery.counts()

    async def counters(self) -> dict[str, list[dict[str, float]]]:
        """Return the engines' counters, by stage and replica; a replica that cannot answer has an empty mapping."""
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
        """Ask the media process, for :class:`omni_actors.media.service.client.MediaService`, which bounds the wait
        (:meth:`~omni_actors.orchestrator.media.MediaLink.query`)."""
        return await self.requests.media.query(what, args)

    async def drain(self, grace_s: float) -> None:
        """Refuse new and waiting requests, and wait until the requests in flight are released, at most ``grace_s``
        seconds; fail the others."""
        self.admission.close(_DRAINING)
        with trio.move_on_after(grace_s):
            while self.inflight:
                await self.requests.idle.park()
        self.requests.fail_all(_DRAINING)

    async def _stop(self) -> None:
        """End all requests and all workers, side by side. No worker follows one that ends; a replica between two
        workers ends too."""
        self.admission.close(_DRAINING)
        self.recovery.stopping = True
        self.requests.fail_all(_DRAINING)
        async with trio.open_nursery() as nursery:
            for pool in self.pools.values():
                nursery.start_soon(pool.stop)


@asynccontextmanager
async def open_orchestrator(plan: Plan, *, log_level: str = "INFO") -> AsyncIterator[Orchestrator]:
    """Start every stage of the plan, side by side, and give the orchestrator at once: await
    :meth:`Orchestrator.wait_ready` before the first request. Leaving the block stops every worker by message, then
    SIGTERM, then SIGKILL; on cancellation the workers are killed. No process is left in any case."""
    policy = restart_policy(plan.limits)
    async with open_launcher() as launcher, open_supervisor("omni", restarts=policy) as root:
        orchestrator = Orchestrator(plan, launcher, root, log_level=log_level)
        async with background() as tasks:
            orchestrator.requests.start(tasks)
            for pool in orchestrator.pools.values():
                pool.start(root, policy)
            try:
                yield orchestrator
            finally:
                await orchestrator._stop()
