"""Admission: the choice which requests run now, wait, or are refused with a time to come back.

A request runs when every capacity limit on its way has capacity: the limit of the deployment, and the limit of each
stage in the request's subgraph, by requests and (where the stage has such a bound) by estimated tokens. Otherwise the
request waits in one bounded :class:`~.wait_queue.WaitQueue`, in the caller's task. Waiting costs a few hundred bytes
here and nothing in a worker. The wait ends by the request's deadline, when the client leaves, when a needed stage is
down, and when the server drains. When the queue is full too the answer is 429, with a ``Retry-After`` computed from the
release rates of the limits on the request's way.

No request overtakes another at a limit. The first queued request at a limit gets the next capacity there, also when a
smaller request waits behind. A request may wait for several limits longer than ``priority_ageing_s``; then free
capacity is kept for the request at each limit, so that traffic at one limit alone cannot keep the request out for ever.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import trio

from omni_actors.orchestrator.capacity import UNBOUNDED, CapacityLimit
from omni_actors.orchestrator.estimate import size_of
from omni_actors.orchestrator.permits import Permit, RequestClass
from omni_actors.orchestrator.wait_queue import QueuedRequest, WaitQueue
from omni_actors.pipelines.plan import DeploymentLimits, Plan
from omni_actors.pipelines.subgraph import Key, Subgraph
from omni_actors.protocol.errors import ErrorInfo, OmniError, deadline_exceeded, overloaded, stage_unavailable
from omni_actors.protocol.request import Request
from omni_actors.protocol.status import AdmissionLoad

RETRY_AFTER_S = (1.0, 60.0)
"""Least and most seconds of a computed ``Retry-After``."""


@dataclass(slots=True, eq=False)
class PermitWaiter(QueuedRequest):
    """A queued request with the caller's task, and with the permit or the error once one is decided."""

    request_class: RequestClass
    tokens: tuple[int, ...] = ()
    task: trio.lowlevel.Task | None = None
    permit: Permit | None = None
    error: ErrorInfo | None = None

    def fits_at(self, limit: CapacityLimit, held: int = 0) -> bool:
        """Return whether a limit has capacity for the request, beside ``held`` requests that capacity is kept for."""
        return limit.has_capacity(self.request_class.tokens_at(limit, self.tokens), held)

    def fits(self) -> bool:
        """Return whether every limit has capacity for the request."""
        return self.request_class.fits(self.tokens)


class Admission:
    """The admission of one deployment. Every method but :meth:`acquire` is synchronous. ``unavailable`` makes the error
    for a stage without replicas."""

    def __init__(self, plan: Plan, unavailable: Callable[[str], OmniError] = stage_unavailable) -> None:
        self._tasks = tuple(plan.tasks)
        self.limits: DeploymentLimits = plan.limits
        self.refused: Counter[str] = Counter()
        """Requests that were not admitted, by reason, each once."""
        self.deployment_limit = CapacityLimit("", plan.limits.max_inflight, live=1)
        """The capacity limit of the whole deployment."""
        self.stage_limits = {
            stage.name: CapacityLimit(
                stage.name, stage.limits.get("max_inflight"), stage.limits.get("max_inflight_tokens")
            )
            for stage in plan.stages
        }
        """The capacity limit of each stage."""
        self.queue: WaitQueue[PermitWaiter] = WaitQueue(plan.limits.priority_ageing_s)
        self.tenants: dict[str, int] = {}
        """Requests in flight and waiting, of each tenant that has any."""
        self._unavailable = unavailable
        self._classes: dict[Key, RequestClass] = {}
        self._per_tenant = UNBOUNDED if plan.limits.max_per_key is None else plan.limits.max_per_key
        self._closed: ErrorInfo | None = None

    # ---- requests

    def try_acquire(self, request: Request, graph: Subgraph) -> Permit | None:
        """Return a permit if the request may run at once, else ``None``: :meth:`acquire` then decides about the
        request."""
        kind = self._classes.get((request.task, request.inputs, request.outputs)) or self._class_of(request, graph)
        if self.queue or self._closed is not None:
            return None
        tenant = request.tenant
        if tenant and self.tenants.get(tenant, 0) >= self._per_tenant:
            return None
        tokens: tuple[int, ...] = ()
        if not kind.counted:
            for limit in kind.limits:
                if limit.used >= limit.limit:
                    return None
        else:
            tokens = kind.estimate(request)
            if not kind.fits(tokens):
                return None
        if tenant:
            self._count_tenant(tenant)
        return kind.acquire(tenant, tokens)

    async def acquire(self, request: Request, graph: Subgraph, deadline: float) -> Permit:
        """Wait for the request's turn, and return a permit, to be given back by :meth:`release`.

        Where there is capacity, the method returns at once and without a checkpoint. If cancelled, nothing is held.

        Raises:
            OmniError: There is no capacity and no place in the queue (429); ``deadline`` (trio time) has passed (408);
                a needed stage is down, or the server drains (503).
        """
        permit = self.try_acquire(request, graph)
        if permit is None:
            permit = await self._wait(self.enqueue(request, graph), deadline)
        return permit

    def reject_early(self, outline: Request, graph: Subgraph, *, priority_may_drop: bool) -> None:
        """Raise the error certain to come from :meth:`acquire` at once, given a lower bound of the request's needs. The
        error counts as the request's refusal. Nothing is reserved, and no request is evicted.

        Args:
            outline: The known part of the request. The whole request needs the same or more.
            graph: The subgraph of the outline.
            priority_may_drop: The request may be less urgent than the outline.
        """
        kind = self._classes.get((outline.task, outline.inputs, outline.outputs)) or self._class_of(outline, graph)
        self._check(outline, kind)
        if not self.queue and all(limit.has_capacity(1) for limit in kind.limits):
            return
        now = trio.current_time()
        # A later priority may even do better: its requests have waited for longer, or are of other tenants.
        later = [it for it in self.queue.priorities if it > outline.priority] if priority_may_drop else []
        for priority in (outline.priority, *later):
            waiter = self._enqueue_tentative(outline, kind, priority, now)
            over = len(self.queue) > self.limits.max_queued and self.queue.to_evict(waiter, now) is waiter
            refused = over and self._next(now) is None
            error = self._queue_full(waiter, now, "queue_full")
            self._remove(waiter)
            if not refused:
                return
        self.refused["queue_full"] += 1
        raise OmniError(error)

    def release(self, permit: Permit) -> None:
        """Give back a permit: the request is released."""
        permit.release_all()
        if permit.tenant:
            self._uncount_tenant(permit.tenant)
        if self.queue:
            self._admit_waiting(trio.current_time())

    def release_stage(self, permit: Permit, name: str) -> None:
        """Give back a permit's part of one stage, when the stage has finished with the request. The request goes on in
        other stages."""
        limit = self.stage_limits[name]
        if limit not in permit.released:
            permit.released += (limit,)
            permit.release(limit)
            if self.queue:
                self._admit_waiting(trio.current_time())

    def reacquire(self, permit: Permit) -> None:
        """Take the capacity of all stages again: the admitted request begins anew in all of them. If that is more than
        a stage's limit, waiting requests wait longer."""
        permit.reacquire()

    # ---- the deployment

    def stage(self, name: str, live: int, *, coming: bool) -> None:
        """Set the number of live replicas of a stage. ``coming``: with no live replica, a replacement is expected in a
        moment, and requests for the stage may wait. Otherwise these requests are refused."""
        limit = self.stage_limits[name]
        limit.resize(live, coming=coming)
        if not self.queue:
            return
        if limit.down:
            error = self._unavailable(name).info
            for waiter in [waiter for waiter in self.queue if limit in waiter.request_class.limits]:
                self._evict(waiter, error, "stage_unavailable")
        self._admit_waiting(trio.current_time())

    def expecting(self, graph: Subgraph) -> bool:
        """Return whether a stage of the subgraph has no replica now, and is about to have one."""
        limits = [self.stage_limits[part.stage.name] for part in graph.parts]
        return not any(limit.down for limit in limits) and any(not limit.limit for limit in limits)

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._closed is not None

    def close(self, error: ErrorInfo) -> None:
        """Refuse all waiting and future requests with this error."""
        self._closed = error
        for waiter in list(self.queue):
            self._evict(waiter, error, "draining")

    def load(self) -> AdmissionLoad:
        """Return the admitted, waiting and refused requests."""
        running = dict.fromkeys(self._tasks, 0)
        for kind in self._classes.values():
            running[kind.task] += kind.running
        waiting = dict.fromkeys(self._tasks, 0)
        for waiter in self.queue:
            waiting[waiter.request_class.task] += 1
        return AdmissionLoad(
            running=running,
            waiting=waiting,
            waiting_bytes=self.queue.size,
            stages={name: limit.used for name, limit in self.stage_limits.items()},
            refused=dict(self.refused),
        )

    # ---- the queue

    def enqueue(self, request: Request, graph: Subgraph) -> PermitWaiter:
        """Put a request without a permit into the queue, and return the place there, which may have a permit already.
        Raises the refusal."""
        kind = self._classes.get((request.task, request.inputs, request.outputs)) or self._class_of(request, graph)
        now = trio.current_time()
        self._check(request, kind)
        waiter = self._enqueue_tentative(request, kind, request.priority, now)
        self._admit_waiting(now)
        limits = self.limits
        while not waiter.gone and (
            (many := len(self.queue) > limits.max_queued) or self.queue.size > limits.max_queued_bytes
        ):
            last = self.queue.to_evict(waiter, now)
            reason = "queue_full" if many else "queue_bytes"
            self._evict(last, self._queue_full(last, now, reason), reason)
            self._admit_waiting(now)
        if waiter.error is not None:
            raise OmniError(waiter.error)
        return waiter

    def withdraw(self, waiter: PermitWaiter) -> None:
        """Remove a request at the end of its wait, and admit the requests behind it."""
        self._remove(waiter)
        self._admit_waiting(trio.current_time())

    def _class_of(self, request: Request, graph: Subgraph) -> RequestClass:
        parts = [(self.stage_limits[part.stage.name], part) for part in graph.parts]
        counted = tuple((limit, part) for limit, part in parts if limit.counts_tokens)
        made = RequestClass(request.task, (self.deployment_limit, *(limit for limit, _ in parts)), counted)
        return self._classes.setdefault((request.task, request.inputs, request.outputs), made)

    def _count_tenant(self, tenant: str) -> None:
        self.tenants[tenant] = self.tenants.get(tenant, 0) + 1

    def _uncount_tenant(self, tenant: str) -> None:
        count = self.tenants[tenant] - 1
        if count:
            self.tenants[tenant] = count
        else:
            del self.tenants[tenant]

    def _enqueue_tentative(self, request: Request, kind: RequestClass, priority: int, now: float) -> PermitWaiter:
        """Put a request into the queue, even if the queue is full."""
        waiter = PermitWaiter(kind, priority, request.tenant, now, size_of(request.params))
        waiter.tokens = kind.estimate(request)
        self.queue.enqueue(waiter)
        if waiter.tenant:
            self._count_tenant(waiter.tenant)
        for limit in kind.limits:
            limit.waiting += 1
            if not waiter.fits_at(limit):
                limit.rate.start(now)
        return waiter

    def _check(self, request: Request, kind: RequestClass) -> None:
        """Raise a refusal for a reason outside of the queue."""
        if self._closed is not None:
            self.refused["draining"] += 1
            raise OmniError(self._closed)
        for limit in kind.limits:
            if limit.down:
                self.refused["stage_unavailable"] += 1
                raise self._unavailable(limit.name)
        if request.tenant and self.tenants.get(request.tenant, 0) >= self._per_tenant:
            self.refused["key_limit"] += 1
            raise overloaded(
                f"This API key has {self.limits.max_per_key} requests under way, which is its limit (max_per_key).",
                RETRY_AFTER_S[0],
            )

    def _queue_full(self, waiter: PermitWaiter, now: float, reason: str) -> ErrorInfo:
        """Return the refusal of a request without a place in the queue."""
        needed, limits = waiter.request_class.limits, self.limits
        wait_s = max(it.wait_s(now) for it in needed if it.rate.since is not None or it is self.deployment_limit)
        if reason == "queue_bytes":
            message = f"{limits.max_queued_bytes} bytes of requests are waiting already (max_queued_bytes)."
        else:
            full = next((f" in stage '{it.name}'" for it in needed if it.name and not waiter.fits_at(it)), "")
            message = f"The server is full: {self.deployment_limit.used} requests are in flight{full}"
            message += f", {limits.max_queued} wait (max_queued)." if limits.max_queued else " (max_inflight)."
        return overloaded(message, min(max(wait_s, RETRY_AFTER_S[0]), RETRY_AFTER_S[1])).info

    async def _wait(self, waiter: PermitWaiter, deadline: float) -> Permit:
        if waiter.permit is not None:
            return waiter.permit

        def abort(_raise_cancel: object) -> trio.lowlevel.Abort:
            self.withdraw(waiter)
            return trio.lowlevel.Abort.SUCCEEDED

        waiter.task = trio.lowlevel.current_task()
        with trio.CancelScope(deadline=deadline):
            await trio.lowlevel.wait_task_rescheduled(abort)
        if waiter.error is not None:
            raise OmniError(waiter.error)
        if waiter.permit is None:
            self.refused["deadline"] += 1
            raise deadline_exceeded("The request was not admitted before its deadline: the server is full.")
        return waiter.permit

    def _admit_waiting(self, now: float) -> None:
        """Give permits to the waiting requests whose turn it is."""
        while self.queue and self.deployment_limit.used < self.deployment_limit.limit:
            waiter = self._next(now)
            if waiter is None:
                return
            self._remove(waiter, served=True)
            if waiter.tenant:
                self._count_tenant(waiter.tenant)
            waiter.permit = waiter.request_class.acquire(waiter.tenant, waiter.tokens)
            self._wake(waiter)

    def _next(self, now: float) -> PermitWaiter | None:
        """Return the next request to admit, if there is capacity for one."""
        taken: set[CapacityLimit] = set()
        held: Counter[CapacityLimit] = Counter()
        for waiter in self.queue.heads(now, PermitWaiter.fits):
            limits = waiter.request_class.limits
            lacking = [limit for limit in limits if not waiter.fits_at(limit, held[limit])]
            if not lacking and taken.isdisjoint(limits):
                return waiter
            taken.update(lacking)
            if now - waiter.since >= self.limits.priority_ageing_s:
                held.update(limit for limit in limits if limit not in lacking)
        return None

    def _remove(self, waiter: PermitWaiter, *, served: bool = False) -> None:
        if waiter.gone:
            return
        self.queue.remove(waiter, served=served)
        if waiter.tenant:
            self._uncount_tenant(waiter.tenant)
        for limit in waiter.request_class.limits:
            limit.waiting -= 1

    def _evict(self, waiter: PermitWaiter, error: ErrorInfo, reason: str) -> None:
        """Remove a request from the queue, and refuse it."""
        self.refused[reason] += 1
        waiter.error = error
        self._remove(waiter)
        self._wake(waiter)

    @staticmethod
    def _wake(waiter: PermitWaiter) -> None:
        if waiter.task is not None:
            trio.lowlevel.reschedule(waiter.task)
            waiter.task = None
