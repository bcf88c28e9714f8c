"""The life of requests: admission, the attempts that run them, their deadlines, and their release."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Mapping

import trio

from omni_actors.orchestrator.admission import Admission
from omni_actors.orchestrator.binding import bind, bind_whole
from omni_actors.orchestrator.deadlines import Deadlines, UniformTimeouts
from omni_actors.orchestrator.media import MediaLink
from omni_actors.orchestrator.recovery import Recovery
from omni_actors.orchestrator.request import RequestStream
from omni_actors.orchestrator.submission import sections_of, submits_of
from omni_actors.pipelines.plan import Plan
from omni_actors.pipelines.sections import check_sections
from omni_actors.pipelines.subgraph import Subgraph, subgraph
from omni_actors.protocol.errors import ErrorInfo, OmniError, deadline_exceeded
from omni_actors.stages.pool import StagePool
from omni_actors.stages.replica import StageReplica

log = logging.getLogger("omni_actors.orchestrator")

_BATCH_ABOVE = 4
"""Requests in flight above which the frames of one turn of the loop share a write. With fewer requests each frame goes
at once, since one more wake-up would cost a lone request more latency than the shared write saves."""


class RequestLifecycle:
    """The owner of a deployment's requests (:class:`~omni_actors.orchestrator.owner.RequestOwner`).

    ``returned`` is called when a replica that was in quarantine takes all requests again.
    """

    def __init__(self, plan: Plan, pools: dict[str, StagePool], returned: Callable[[], None]) -> None:
        self.plan = plan
        self.inflight: dict[int, RequestStream] = {}
        """Requests that are admitted and not yet released, by number."""
        self.admitted = 0
        """Requests that have been admitted since the start."""
        self.vacant = trio.lowlevel.ParkingLot()
        """One waiter is woken for each request that is released."""
        self.idle = trio.lowlevel.ParkingLot()
        """Woken when the last request in flight is released."""
        self.admission = Admission(plan, lambda stage: pools[stage].unavailable())
        self.deadlines: Deadlines[RequestStream] = Deadlines(self._expire)
        self.unreleased: UniformTimeouts[RequestStream] = UniformTimeouts(plan.limits.release_timeout_s, self._overdue)
        """Requests that are over and not yet released."""
        self.recovery = Recovery(plan.limits, pools, self._attempt, returned)
        self.media = MediaLink(pools)
        self._pools = pools
        self._slots: dict[int, int] = {}
        """The slot of each request in ``deadlines``, by number, until the request is terminal."""
        self._keys = itertools.count()

    # ---- what a record tells its owner

    async def admit(self, record: RequestStream) -> None:
        """Wait until the request may run, and begin its first attempt. No checkpoint where the request may run at
        once."""
        request = record.request
        limits = self.plan.limits
        graph = subgraph(self.plan, request.task, request.inputs, request.outputs)
        check_sections(graph, request.params)
        budget = limits.deadline_s if request.deadline_s is None else min(request.deadline_s, limits.deadline_s)
        if not budget > 0:  # NaN too
            raise deadline_exceeded()
        now = trio.current_time()
        deadline = now + budget
        while True:
            permit = self.admission.try_acquire(request, graph)
            if permit is None:
                permit = await self.admission.acquire(request, graph, deadline)
                now = trio.current_time()
            try:
                record.sections = sections_of(request, self.plan.pipeline.parameters)
                key = next(self._keys)
                replicas, submits = self.bind(record, key, graph, {}, max(0.0, deadline - now))
                break
            except BaseException as error:
                self.admission.release(permit)
                # Since admission a replica may have been taken away, for another one to come.
                if not (isinstance(error, OmniError) and self.admission.expecting(graph)):
                    raise
        # Nothing raises from here on: what is registered will be released.
        record.admit(key, graph, permit, now, deadline)
        if request.media:
            self.media.attach(record, replicas)
        self.inflight[key] = record
        self.admitted += 1
        self._slots[key] = self.deadlines.add(record, deadline)
        log.debug("admitted key=%d task=%s", key, request.task, extra={"request": record.id})
        self._begin(record, key, replicas, submits)

    def stage_lost(self, record: RequestStream, replica: StageReplica, error: ErrorInfo) -> None:
        self.recovery.stage_lost(record, replica, error)

    def stage_progressed(self, record: RequestStream, replica: StageReplica) -> None:
        self.recovery.stage_progressed(record, replica)

    def stage_released(self, record: RequestStream, replica: StageReplica, *, current: bool) -> None:
        if current and record.permit is not None:
            self.admission.release_stage(record.permit, replica.stage.name)
        if replica.quarantined:
            self.recovery.attempt_left(replica)

    def ended(self, record: RequestStream) -> None:
        self.deadlines.discard(record, self._slots.pop(record.number))
        self.recovery.request_ended(record)
        self.unreleased.add(record)

    def released(self, record: RequestStream) -> None:
        self.unreleased.discard(record)
        del self.inflight[record.number]
        assert record.permit is not None
        self.admission.release(record.permit)
        if record.request.media:  # no other attempt of it will ask for them
            self.media.discard(record)
        self.recovery.request_released(record)
        if self.vacant:
            self.vacant.unpark()
        if not self.inflight and self.idle:
            self.idle.unpark_all()

    # ---- attempts

    def bind(
        self, record: RequestStream, key: int, graph: Subgraph, assigned: Mapping[str, StageReplica], budget_s: float
    ) -> tuple[dict[str, StageReplica], list[tuple[StageReplica, bytes]]]:
        """Choose the replicas of an attempt, and make the Submit frame of each.

        Args:
            record: The request.
            key: The key of the attempt.
            graph: The stages that the request needs.
            assigned: Replicas that are given for some of the stages.
            budget_s: Seconds that are left of the request's deadline.

        Raises:
            OmniError: ``stage_unavailable`` where there are no replicas that are all linked.
        """
        pools, request = self._pools, record.request
        try:
            replicas = bind(pools, request, graph, assigned)
            submits = submits_of(record, key, graph, replicas, budget_s)
        except OmniError as error:
            whole = bind_whole(pools, request, graph, assigned) if error.info.code == "stage_unavailable" else None
            if whole is None:
                raise
            replicas, submits = whole, submits_of(record, key, graph, whole, budget_s)
        if request.affinity is not None:
            for name, replica in replicas.items():
                pools[name].pin(request.affinity, replica)
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

    def _attempt(self, record: RequestStream, assigned: Mapping[str, StageReplica]) -> None:
        """Begin another attempt of a request, on the assigned replicas where there are any. Raises
        ``stage_unavailable``, and any other reason against the attempt."""
        graph = record.subgraph
        assert graph is not None
        key = next(self._keys)
        replicas, submits = self.bind(record, key, graph, assigned, record.deadline - trio.current_time())
        if record.request.media:
            self.media.check_resumable(record, replicas)
        log.debug("attempt key=%d", key, extra={"request": record.id})
        assert record.permit is not None
        self.admission.reacquire(record.permit)
        self._begin(record, key, replicas, submits)
        record.feed_again()

    # ---- deadlines

    @staticmethod
    def _expire(record: RequestStream) -> None:
        record.fail(deadline_exceeded().info)

    def _overdue(self, record: RequestStream) -> None:
        """Kill the workers that do not release a request that is over: they no longer listen. A worker whose output
        goes to such a worker may only be waiting for it, and gets the same time again."""
        assert record.subgraph is not None
        replicas = [replica for pool in self._pools.values() for replica in pool.replicas]
        holding = [replica for replica in replicas if record in replica.requests.values()]
        stages = {replica.stage.name for replica in holding}
        waiting = {edge.source for edge in record.subgraph.edges if edge.target in stages}
        for replica in holding:
            if replica.stage.name not in waiting and replica.kill_reason is None:
                log.error(
                    "%s does not release a request that is over; its worker is killed",
                    replica.name,
                    extra={"request": record.id},
                )
                replica.kill("unreleased", "it did not release a request that was over")
        self.unreleased.add(record)

    # ---- the deployment

    def fail_all(self, error: ErrorInfo) -> None:
        """Fail every request in flight."""
        for record in list(self.inflight.values()):
            record.fail(error)

    def start(self, tasks: trio.Nursery) -> None:
        """Keep the deadlines of all requests, in tasks that run until they are cancelled."""
        tasks.start_soon(self.deadlines.run, name="deadlines")
        tasks.start_soon(self.unreleased.run, name="deadlines of release")
        tasks.start_soon(self.recovery.overdue.run, name="deadlines of resumes")
