"""Admission: which requests run now, which wait, and which are told to come back later.

A request runs when every gate on its way has room: the deployment's, and each stage's of its subgraph, by requests and
(where the stage has such a bound) by estimated tokens. Otherwise it waits in one bounded :class:`~.line.Line`, in its
caller's task: that costs a few hundred bytes here and nothing in a worker, and ends by its deadline, by its client's
leaving, when a stage that it needs is down, and when the server drains. When the line is full too the answer is 429,
with a ``Retry-After`` computed from how fast the gates that it would have waited at drain.

Nobody overtakes at a bound: who is first in line at a gate has the next room there, also when it needs more of it than
somebody behind; and one that waits for several gates longer than ``priority_ageing_s`` has a place kept at each that is
free, so that traffic which needs only one of them cannot keep it out for ever.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import trio

from omni_actors.orchestrator.estimate import size_of, tokens_of
from omni_actors.orchestrator.gate import UNBOUNDED, Gate
from omni_actors.orchestrator.line import Line, Waiter
from omni_actors.pipelines.plan import DeploymentLimits, Plan
from omni_actors.pipelines.subgraph import Key, StagePart, Subgraph
from omni_actors.protocol.errors import ErrorInfo, OmniError, deadline_exceeded, overloaded, stage_unavailable
from omni_actors.protocol.request import Request
from omni_actors.protocol.status import AdmissionLoad

RETRY_AFTER_S = (1.0, 60.0)
"""What a computed ``Retry-After`` is kept within."""


@dataclass(slots=True, eq=False)
class Shape:
    """What all requests with the same inputs and outputs of a task need: ``gates``, the deployment's first, and those
    parts of the subgraph (with their gate) where tokens are counted."""

    task: str
    gates: tuple[Gate, ...]
    counted: tuple[tuple[Gate, StagePart], ...]
    running: int = 0


@dataclass(slots=True, eq=False)
class Seat:
    """What an admitted request holds. ``tokens`` as in :attr:`Shape.counted`; ``free`` are the gates of stages that
    have finished with it already."""

    shape: Shape
    tenant: str
    tokens: tuple[int, ...]
    free: tuple[Gate, ...] = ()


@dataclass(slots=True, eq=False)
class _Waiting(Waiter):
    shape: Shape
    tokens: tuple[int, ...] = ()
    task: trio.lowlevel.Task | None = None
    seat: Seat | None = None
    error: ErrorInfo | None = None

    def room_at(self, gate: Gate, held: int = 0) -> bool:
        return gate.room(_tokens_at(self.shape, self.tokens, gate), held)

    def fits(self) -> bool:
        return all(map(self.room_at, self.shape.gates))


class Admission:
    """One deployment's. Everything here but :meth:`enter` is synchronous. ``unavailable`` makes the error for a stage
    that is down."""

    def __init__(self, plan: Plan, unavailable: Callable[[str], OmniError] = stage_unavailable) -> None:
        self._tasks = tuple(plan.tasks)
        self.limits: DeploymentLimits = plan.limits
        self.refused: Counter[str] = Counter()
        """By reason: requests that were not admitted, each once."""
        self._unavailable = unavailable
        self._whole = Gate("", plan.limits.max_inflight, live=1)
        self._gates = {
            stage.name: Gate(stage.name, stage.limits.get("max_inflight"), stage.limits.get("max_inflight_tokens"))
            for stage in plan.stages
        }
        self._shapes: dict[Key, Shape] = {}
        self._line: Line[_Waiting] = Line(plan.limits.priority_ageing_s)
        self._per_tenant = UNBOUNDED if plan.limits.max_per_key is None else plan.limits.max_per_key
        self._tenants: dict[str, int] = {}
        """Requests in flight and waiting of each tenant that has any."""
        self._closed: ErrorInfo | None = None

    # ---- requests

    def try_enter(self, request: Request, graph: Subgraph) -> Seat | None:
        """A seat at once, or ``None``: then :meth:`enter` says what becomes of the request."""
        shape = self._shapes.get((request.task, request.inputs, request.outputs)) or self._shape(request, graph)
        if self._line or self._closed is not None:
            return None
        tenant = request.tenant
        if tenant and self._tenants.get(tenant, 0) >= self._per_tenant:
            return None
        if not shape.counted:
            for gate in shape.gates:
                if gate.used >= gate.limit:
                    return None
            return self._seat(shape, tenant, ())
        tokens = _estimate(request, shape)
        if not all(gate.room(_tokens_at(shape, tokens, gate)) for gate in shape.gates):
            return None
        return self._seat(shape, tenant, tokens)

    async def enter(self, request: Request, graph: Subgraph, deadline: float) -> Seat:
        """A seat, when it is this request's turn; give it back with :meth:`leave`. At once, and then without a
        checkpoint, where there is room. Raises :class:`OmniError` when there is none, neither here nor in line (429),
        at ``deadline`` (trio time; 408), when a stage that it needs is down (503), and when the server drains (503). If
        cancelled, nothing is held."""
        seat = self.try_enter(request, graph)
        if seat is None:
            seat = await self._wait(self._join(request, graph), deadline)
        return seat

    def foresee(self, outline: Request, graph: Subgraph, *, or_later: bool) -> None:
        """Raises what :meth:`enter` would be sure to raise at once for a request of which no more is known than that it
        needs what ``outline`` needs, or more. ``or_later``: it may be less urgent, too. That is counted as its refusal.
        Nobody else is turned away for it here, and it holds nothing."""
        shape = self._shapes.get((outline.task, outline.inputs, outline.outputs)) or self._shape(outline, graph)
        self._check(outline, shape)
        if not self._line and all(gate.room(1) for gate in shape.gates):
            return
        now = trio.current_time()
        # One of a later priority may even do better: those of it have waited for longer, or are others'.
        later = [it for it in self._line.priorities if it > outline.priority] if or_later else []
        for priority in (outline.priority, *later):
            waiter = self._stand(outline, shape, priority, now)
            over = len(self._line) > self.limits.max_queued and self._line.last(waiter, now) is waiter
            refused = over and self._next(now) is None
            full = self._full(waiter, now, "queue_full")
            self._drop(waiter)
            if not refused:
                return
        self.refused["queue_full"] += 1
        raise OmniError(full)

    def leave(self, seat: Seat) -> None:
        """The request is released: its places are others'."""
        seat.shape.running -= 1
        for gate in seat.shape.gates:
            if gate not in seat.free:
                _give_back(seat, gate)
        if seat.tenant:
            self._forget(seat.tenant)
        if self._line:
            self._advance(trio.current_time())

    def leave_stage(self, seat: Seat, name: str) -> None:
        """One stage has finished with the request, which goes on in others."""
        gate = self._gates[name]
        if gate not in seat.free:
            seat.free += (gate,)
            _give_back(seat, gate)
            if self._line:
                self._advance(trio.current_time())

    def again(self, seat: Seat) -> None:
        """The request begins anew in all its stages. It has been admitted: if that is more than a stage is to be given,
        others wait longer."""
        for gate in seat.free:
            gate.used += 1
            gate.tokens += _tokens_at(seat.shape, seat.tokens, gate)
        seat.free = ()

    # ---- the deployment

    def stage(self, name: str, live: int, *, coming: bool) -> None:
        """How many replicas of a stage live now; ``coming``: with none of them, one is expected in a moment (it is
        being replaced), so that who needs it may wait. Otherwise they are refused.
        """
        gate = self._gates[name]
        gate.resize(live, coming=coming)
        if not self._line:
            return
        if gate.down:
            error = self._unavailable(name).info
            for waiter in [waiter for waiter in self._line if gate in waiter.shape.gates]:
                self._turn_away(waiter, error, "stage_unavailable")
        self._advance(trio.current_time())

    def expecting(self, graph: Subgraph) -> bool:
        """Whether a stage of it has no replica now, and is about to have one."""
        gates = [self._gates[part.stage.name] for part in graph.parts]
        return not any(gate.down for gate in gates) and any(not gate.limit for gate in gates)

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._closed is not None

    def close(self, error: ErrorInfo) -> None:
        """Nobody is admitted from now on: who waits, and who comes, gets this."""
        self._closed = error
        for waiter in list(self._line):
            self._turn_away(waiter, error, "draining")

    def load(self) -> AdmissionLoad:
        running = dict.fromkeys(self._tasks, 0)
        for shape in self._shapes.values():
            running[shape.task] += shape.running
        waiting = dict.fromkeys(self._tasks, 0)
        for waiter in self._line:
            waiting[waiter.shape.task] += 1
        return AdmissionLoad(
            running=running,
            waiting=waiting,
            waiting_bytes=self._line.size,
            stages={name: gate.used for name, gate in self._gates.items()},
            refused=dict(self.refused),
        )

    # ---- inside

    def _shape(self, request: Request, graph: Subgraph) -> Shape:
        parts = [(self._gates[part.stage.name], part) for part in graph.parts]
        counted = tuple((gate, part) for gate, part in parts if gate.counts_tokens)
        made = Shape(request.task, (self._whole, *(gate for gate, _ in parts)), counted)
        return self._shapes.setdefault((request.task, request.inputs, request.outputs), made)

    def _seat(self, shape: Shape, tenant: str, tokens: tuple[int, ...]) -> Seat:
        for gate in shape.gates:
            gate.used += 1
        if tokens:
            for (gate, _), count in zip(shape.counted, tokens, strict=True):
                gate.tokens += count
        shape.running += 1
        if tenant:
            self._remember(tenant)
        return Seat(shape, tenant, tokens)

    def _remember(self, tenant: str) -> None:
        self._tenants[tenant] = self._tenants.get(tenant, 0) + 1

    def _forget(self, tenant: str) -> None:
        count = self._tenants[tenant] - 1
        if count:
            self._tenants[tenant] = count
        else:
            del self._tenants[tenant]

    def _join(self, request: Request, graph: Subgraph) -> _Waiting:
        """A place in line. Raises what speaks against that."""
        shape = self._shapes[request.task, request.inputs, request.outputs]
        now = trio.current_time()
        self._check(request, shape)
        waiter = self._stand(request, shape, request.priority, now)
        self._advance(now)
        limits = self.limits
        while not waiter.gone and (
            (many := len(self._line) > limits.max_queued) or self._line.size > limits.max_queued_bytes
        ):
            last = self._line.last(waiter, now)
            reason = "queue_full" if many else "queue_bytes"
            self._turn_away(last, self._full(last, now, reason), reason)
            self._advance(now)
        if waiter.error is not None:
            raise OmniError(waiter.error)
        return waiter

    def _stand(self, request: Request, shape: Shape, priority: int, now: float) -> _Waiting:
        """A place in line, before it is seen for whom there is one."""
        waiter = _Waiting(shape, priority, request.tenant, now, size_of(request.params))
        waiter.tokens = _estimate(request, shape)
        self._line.join(waiter)
        if waiter.tenant:
            self._remember(waiter.tenant)
        for gate in shape.gates:
            gate.waiting += 1
            if not waiter.room_at(gate):
                gate.pace.begin(now)
        return waiter

    def _check(self, request: Request, shape: Shape) -> None:
        """Raises what would be the same with an empty line."""
        if self._closed is not None:
            self.refused["draining"] += 1
            raise OmniError(self._closed)
        for gate in shape.gates:
            if gate.down:
                self.refused["stage_unavailable"] += 1
                raise self._unavailable(gate.name)
        if request.tenant and self._tenants.get(request.tenant, 0) >= self._per_tenant:
            self.refused["key_limit"] += 1
            raise overloaded(
                f"This API key has {self.limits.max_per_key} requests under way, which is its limit (max_per_key).",
                RETRY_AFTER_S[0],
            )

    def _full(self, waiter: _Waiting, now: float, reason: str) -> ErrorInfo:
        """The refusal of one that would have to wait, and cannot."""
        gates, limits = waiter.shape.gates, self.limits
        wait_s = max(gate.wait_s(now) for gate in gates if gate.pace.since is not None or gate is self._whole)
        if reason == "queue_bytes":
            message = f"{limits.max_queued_bytes} bytes of requests are waiting already (max_queued_bytes)."
        else:
            full = next((f" in stage '{gate.name}'" for gate in gates if gate.name and not waiter.room_at(gate)), "")
            message = f"The server is full: {self._whole.used} requests are in flight{full}"
            message += f", {limits.max_queued} wait (max_queued)." if limits.max_queued else " (max_inflight)."
        return overloaded(message, min(max(wait_s, RETRY_AFTER_S[0]), RETRY_AFTER_S[1])).info

    async def _wait(self, waiter: _Waiting, deadline: float) -> Seat:
        if waiter.seat is not None:
            return waiter.seat

        def abort(_raise_cancel: object) -> trio.lowlevel.Abort:
            self._withdraw(waiter)
            return trio.lowlevel.Abort.SUCCEEDED

        waiter.task = trio.lowlevel.current_task()
        with trio.CancelScope(deadline=deadline):
            await trio.lowlevel.wait_task_rescheduled(abort)
        if waiter.error is not None:
            raise OmniError(waiter.error)
        if waiter.seat is None:
            self.refused["deadline"] += 1
            raise deadline_exceeded("The request was not admitted before its deadline: the server is full.")
        return waiter.seat

    def _advance(self, now: float) -> None:
        """Give seats to those whose turn it is."""
        while self._line and self._whole.used < self._whole.limit:
            waiter = self._next(now)
            if waiter is None:
                return
            self._drop(waiter, served=True)
            waiter.seat = self._seat(waiter.shape, waiter.tenant, waiter.tokens)
            self._wake(waiter)

    def _next(self, now: float) -> _Waiting | None:
        spoken_for: set[Gate] = set()
        held: Counter[Gate] = Counter()
        for waiter in self._line.heads(now, _Waiting.fits):
            gates = waiter.shape.gates
            lacking = [gate for gate in gates if not waiter.room_at(gate, held[gate])]
            if not lacking and spoken_for.isdisjoint(gates):
                return waiter
            spoken_for.update(lacking)
            if now - waiter.since >= self.limits.priority_ageing_s:
                held.update(gate for gate in gates if gate not in lacking)
        return None

    def _drop(self, waiter: _Waiting, *, served: bool = False) -> None:
        """Out of the line."""
        if waiter.gone:
            return
        self._line.leave(waiter, served=served)
        if waiter.tenant:
            self._forget(waiter.tenant)
        for gate in waiter.shape.gates:
            gate.waiting -= 1

    def _withdraw(self, waiter: _Waiting) -> None:
        """It does not wait any longer: whom it stood in the way of may be next."""
        self._drop(waiter)
        self._advance(trio.current_time())

    def _turn_away(self, waiter: _Waiting, error: ErrorInfo, reason: str) -> None:
        self.refused[reason] += 1
        waiter.error = error
        self._drop(waiter)
        self._wake(waiter)

    @staticmethod
    def _wake(waiter: _Waiting) -> None:
        if waiter.task is not None:
            trio.lowlevel.reschedule(waiter.task)
            waiter.task = None


def _give_back(seat: Seat, gate: Gate) -> None:
    """What a seat holds of one gate."""
    gate.used -= 1
    if seat.tokens:
        gate.tokens -= _tokens_at(seat.shape, seat.tokens, gate)
    if gate.pace.since is not None:
        gate.released(trio.current_time())


def _estimate(request: Request, shape: Shape) -> tuple[int, ...]:
    return tuple(tokens_of(request, part) for _, part in shape.counted)


def _tokens_at(shape: Shape, tokens: tuple[int, ...], gate: Gate) -> int:
    for (counted, _), count in zip(shape.counted, tokens, strict=True):
        if counted is gate:
            return count
    return 0
