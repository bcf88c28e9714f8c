"""Who is admitted, who waits, and who is told to come back: in virtual time, without workers."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.pipelines.builders import ASSISTANT, plan_of
from trio.testing import MockClock, wait_all_tasks_blocked

from omni_actors.orchestrator.admission import RETRY_AFTER_S, Admission, PermitWaiter
from omni_actors.orchestrator.permits import Permit
from omni_actors.pipelines.factory import resolve
from omni_actors.pipelines.plan import Plan
from omni_actors.pipelines.subgraph import Subgraph, subgraph
from omni_actors.protocol.errors import ErrorInfo, OmniError, stage_unavailable
from omni_actors.protocol.params import Sampling
from omni_actors.protocol.request import Request

DRAINING = ErrorInfo(message="bye", code="draining", status=503)


@dataclass
class Callers:
    """Callers of an :class:`Admission`, by name: each asks for a permit and holds it until :meth:`leave`."""

    plan: Plan
    admission: Admission
    nursery: trio.Nursery
    holding: dict[str, Permit] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)
    refused: dict[str, ErrorInfo] = field(default_factory=dict)
    at: dict[str, float] = field(default_factory=dict)
    """Virtual time at which a caller was admitted or refused."""
    scopes: dict[str, trio.CancelScope] = field(default_factory=dict)

    async def _call(self, name: str, request: Request, deadline: float) -> None:
        with trio.CancelScope() as self.scopes[name]:
            try:
                self.holding[name] = await self.admission.acquire(request, self.graph(request.task), deadline)
                self.order.append(name)
            except OmniError as error:
                self.refused[name] = error.info
            self.at[name] = trio.current_time()

    def graph(self, task: str) -> Subgraph:
        return subgraph(self.plan, task, ("text",), ("text",))

    async def arrive(self, name: str, task: str = "echo", deadline_s: float = 1000.0, **request: Any) -> None:
        """Let a caller ask for a permit, and return when it holds one, waits, or is refused."""
        made = Request(task=task, **request)
        self.nursery.start_soon(self._call, name, made, trio.current_time() + deadline_s)
        await wait_all_tasks_blocked()

    async def leave(self, name: str) -> None:
        self.admission.release(self.holding.pop(name))
        await wait_all_tasks_blocked()

    @property
    def running(self) -> int:
        return sum(self.admission.load().running.values())

    @property
    def waiting(self) -> int:
        return sum(self.admission.load().waiting.values())

    def empty(self) -> bool:
        load = self.admission.load()
        limits = [self.admission.deployment_limit, *self.admission.stage_limits.values()]
        counts = [self.running, self.waiting, load.waiting_bytes, len(self.admission.tenants)]
        return not any((*counts, *load.stages.values(), *(limit.tokens + limit.waiting for limit in limits)))


@asynccontextmanager
async def callers(*how: str | Plan) -> AsyncIterator[Callers]:
    """Callers of the stub pipeline with these overrides, or of a plan. At the end nothing may be held."""
    plan = (
        how[0] if how and isinstance(how[0], Plan) else resolve("stub", platform="cpu", overrides=tuple(map(str, how)))
    )
    admission = Admission(plan, lambda stage: stage_unavailable(stage, 7.0))
    for stage in plan.stages:
        admission.stage(stage.name, 1, coming=False)
    async with trio.open_nursery() as nursery:
        it = Callers(plan, admission, nursery)
        yield it
        for name in list(it.holding):
            await it.leave(name)
        while it.holding:
            await it.leave(next(iter(it.holding)))
        assert it.empty()
        nursery.cancel_scope.cancel()


async def test_with_room_nobody_waits_for_a_turn_of_the_loop() -> None:
    async with callers() as it:
        request, graph = Request(task="echo"), it.graph("echo")
        with trio.testing.assert_no_checkpoints():
            permit = await it.admission.acquire(request, graph, trio.current_time() + 1)
        it.admission.release(permit)


async def test_over_the_bound_they_wait_and_come_in_as_they_came(autojump_clock: MockClock) -> None:
    async with callers("limits.max_inflight=2") as it:
        for name in "abcde":
            await it.arrive(name)
        assert it.order == ["a", "b"]
        assert it.waiting == 3
        for name in "abc":
            await it.leave(name)
        assert it.order == list("abcde")


async def test_a_stage_has_a_bound_of_its_own_and_who_does_not_need_it_passes(autojump_clock: MockClock) -> None:
    async with callers("stages.c.limits.max_inflight=1") as it:
        await it.arrive("whole")
        await it.arrive("waits")
        await it.arrive("streams", task="tokens")  # stage a alone
        assert it.order == ["whole", "streams"]
        await it.leave("whole")
        assert "waits" in it.order


async def test_a_stage_that_is_done_with_a_request_takes_the_next_one(autojump_clock: MockClock) -> None:
    async with callers("stages.a.limits.max_inflight=1") as it:
        await it.arrive("first")
        await it.arrive("second")
        it.admission.release_stage(it.holding["first"], "a")
        it.admission.release_stage(it.holding["first"], "a")
        await wait_all_tasks_blocked()
        assert it.order == ["first", "second"]
        assert it.admission.load().stages == {"a": 1, "b": 2, "c": 2}
        it.admission.reacquire(it.holding["first"])  # resumed after a death
        assert it.admission.load().stages["a"] == 2
        await it.arrive("third")
        await it.leave("first")
        assert "third" not in it.order
        await it.leave("second")
        assert "third" in it.order


async def test_the_line_is_bounded_and_what_is_over_it_is_told_when_to_come_back(autojump_clock: MockClock) -> None:
    async with callers("limits.max_inflight=1", "limits.max_queued=2") as it:
        for name in "abcd":
            await it.arrive(name)
        assert list(it.refused) == ["d"]
        info = it.refused["d"]
        assert (info.status, info.code) == (429, "overloaded")
        assert "max_queued" in info.message
        assert info.retry_after is not None
        assert it.admission.refused == {"queue_full": 1}


async def test_without_a_line_the_answer_is_at_once(autojump_clock: MockClock) -> None:
    async with callers("limits.max_inflight=1", "limits.max_queued=0") as it:
        await it.arrive("a")
        await it.arrive("b")
        assert it.refused["b"].status == 429
        assert "max_inflight" in it.refused["b"].message


async def test_the_line_is_bounded_in_bytes(autojump_clock: MockClock) -> None:
    async with callers("limits.max_inflight=1", "limits.max_queued_bytes=2000") as it:
        await it.arrive("a")
        await it.arrive("b", params={"stub": {"text": "x" * 1500}})
        await it.arrive("c", params={"stub": {"text": "x" * 1500}})
        await it.arrive("d", params={"stub": {"text": "x" * 100}})
        assert list(it.refused) == ["c"]
        assert "max_queued_bytes" in it.refused["c"].message
        assert it.admission.refused == {"queue_bytes": 1}


async def test_retry_after_is_how_long_those_ahead_take_at_the_measured_rate(autojump_clock: MockClock) -> None:
    async with callers("limits.max_inflight=4", "limits.max_queued=20") as it:
        for i in range(24):
            await it.arrive(f"{i}")
        for i in range(100):  # four every two seconds, as a batch ends
            if i % 4 == 0:
                await trio.sleep(2.0)
            await it.leave(f"{i}")
            await it.arrive(f"{24 + i}")
        await it.arrive("late")
        assert it.refused["late"].retry_after == pytest.approx(21 * 0.5, rel=0.2)
        await trio.sleep(600)  # nothing ends any more
        await it.arrive("later")
        assert it.refused["later"].retry_after == RETRY_AFTER_S[1]


async def test_a_rate_is_not_measured_while_nobody_waits(autojump_clock: MockClock) -> None:
    async with callers("limits.max_inflight=1", "limits.max_queued=1") as it:
        for i in range(40):
            await it.arrive(f"{i}")
            await trio.sleep(0.1 if i % 2 else 100.0)
            await it.arrive(f"w{i}") if i % 2 else None
            await trio.sleep(0.5)
            await it.leave(f"{i}")
            if i % 2:
                await trio.sleep(0.5)
                await it.leave(f"w{i}")
        await it.arrive("a")
        await it.arrive("b")
        await it.arrive("c")
        assert it.refused["c"].retry_after == pytest.approx(1.0)


async def test_waiting_ends_at_the_requests_deadline(autojump_clock: MockClock) -> None:
    async with callers("limits.max_inflight=1") as it:
        await it.arrive("a")
        await it.arrive("b", deadline_s=3.0)
        await trio.sleep(10)
        assert it.refused["b"].status == 408
        assert it.at["b"] == pytest.approx(3.0)
        assert it.waiting == 0
        assert it.admission.refused == {"deadline": 1}


async def test_who_leaves_holds_no_place(autojump_clock: MockClock) -> None:
    async with callers("limits.max_inflight=1", "limits.max_queued=1") as it:
        await it.arrive("a")
        await it.arrive("b")
        it.scopes["b"].cancel()
        await wait_all_tasks_blocked()
        await it.arrive("c")
        assert not it.refused
        await it.leave("a")
        assert it.order == ["a", "c"]


async def test_one_that_is_admitted_as_its_client_leaves_gives_its_seat_back(autojump_clock: MockClock) -> None:
    async with callers("limits.max_inflight=1") as it:
        await it.arrive("a")
        await it.arrive("b")
        it.admission.release(it.holding.pop("a"))
        it.scopes["b"].cancel()
        await wait_all_tasks_blocked()
        assert "b" in it.holding  # it has its permit; its caller is cancelled where it next waits, and leaves
        assert it.running == 1


async def test_draining_turns_away_who_waits_and_who_comes(autojump_clock: MockClock) -> None:
    async with callers("limits.max_inflight=1") as it:
        await it.arrive("a")
        await it.arrive("b")
        it.admission.close(DRAINING)
        await wait_all_tasks_blocked()
        await it.arrive("c")
        assert it.refused == {"b": DRAINING, "c": DRAINING}


async def test_a_stage_without_a_replica_refuses_those_who_need_it_alone(autojump_clock: MockClock) -> None:
    async with callers("limits.max_inflight=1") as it:
        await it.arrive("a", task="tokens")
        await it.arrive("whole")
        await it.arrive("part", task="tokens")
        it.admission.stage("c", 0, coming=False)
        await wait_all_tasks_blocked()
        assert (it.refused["whole"].status, it.refused["whole"].stage) == (503, "c")
        assert it.refused["whole"].retry_after == 7.0
        await it.arrive("another")
        assert it.refused["another"].stage == "c"
        await it.leave("a")
        assert it.order == ["a", "part"]
        it.admission.stage("c", 1, coming=False)
        await it.leave("part")
        await it.arrive("again")
        assert "again" in it.holding


async def test_while_a_replica_is_replaced_those_who_need_it_wait(autojump_clock: MockClock) -> None:
    async with callers() as it:
        it.admission.stage("c", 0, coming=True)
        await it.arrive("whole")
        await it.arrive("part", task="tokens")
        assert it.order == ["part"]
        assert it.admission.expecting(it.graph("echo"))
        it.admission.stage("c", 1, coming=True)
        await wait_all_tasks_blocked()
        assert it.order == ["part", "whole"]


async def test_bounds_of_a_stage_are_those_of_its_live_replicas(autojump_clock: MockClock) -> None:
    async with callers("stages.a.replicas=2", "stages.a.limits.max_inflight=1") as it:
        it.admission.stage("a", 2, coming=False)
        for name in "abcd":
            await it.arrive(name)
        assert it.order == ["a", "b"]
        it.admission.stage("a", 1, coming=False)
        await it.leave("a")
        assert it.order == ["a", "b"]
        it.admission.stage("a", 2, coming=False)
        await wait_all_tasks_blocked()
        assert it.order == ["a", "b", "c"]


async def test_priorities_order_who_waits(autojump_clock: MockClock) -> None:
    async with callers("limits.max_inflight=1") as it:
        await it.arrive("first")
        await it.arrive("usual")
        await it.arrive("late", priority=3)
        await it.arrive("urgent", priority=-1)
        for name in ("first", "urgent", "usual"):
            await it.leave(name)
        assert it.order == ["first", "urgent", "usual", "late"]


async def test_a_priority_ages_so_that_none_starves(autojump_clock: MockClock) -> None:
    async with callers("limits.max_inflight=1", "limits.priority_ageing_s=5") as it:
        await it.arrive("0")
        await it.arrive("late", priority=2)
        for i in range(1, 30):
            await it.arrive(f"{i}")
            await trio.sleep(1.0)
            await it.leave(it.order[-1])
        assert it.order.index("late") == 10


async def test_in_a_full_line_the_urgent_takes_the_place_of_the_last_of_the_others(autojump_clock: MockClock) -> None:
    async with callers("limits.max_inflight=1", "limits.max_queued=2") as it:
        await it.arrive("a")
        await it.arrive("b", priority=1)
        await it.arrive("c", priority=1)
        await it.arrive("urgent")
        assert list(it.refused) == ["c"]
        await it.arrive("d", priority=1)
        assert list(it.refused) == ["c", "d"]


async def test_tenants_take_turns_and_a_flood_does_not_fill_the_line_for_others(autojump_clock: MockClock) -> None:
    async with callers("limits.max_inflight=1", "limits.max_queued=10") as it:
        for i in range(30):
            await it.arrive(f"flood{i}", tenant="flood")
        for i in range(3):
            await it.arrive(f"few{i}", tenant="few")
        assert not [name for name in it.refused if name.startswith("few")]
        assert it.waiting == 10
        for _ in range(7):
            await it.leave(it.order[-1])
        assert sorted(name for name in it.order if name.startswith("few")) == ["few0", "few1", "few2"]


async def test_a_key_has_a_limit_over_which_it_is_told_so(autojump_clock: MockClock) -> None:
    async with callers("limits.max_inflight=1", "limits.max_per_key=2") as it:
        for name in "abc":
            await it.arrive(name, tenant="greedy")
        await it.arrive("d", tenant="modest")
        assert list(it.refused) == ["c"]
        assert it.refused["c"].status == 429
        assert "2 requests" in it.refused["c"].message
        assert "max_per_key" in it.refused["c"].message
        assert "greedy" not in it.refused["c"].message
        await it.leave("a")
        await it.arrive("e", tenant="greedy")
        assert "e" not in it.refused


def chat(tokens: int) -> dict[str, Any]:
    """Parameters of a chat that is estimated at so many tokens."""
    return {"sampling": Sampling(max_tokens=tokens)}


async def test_a_bound_of_tokens_counts_what_requests_are_estimated_at(autojump_clock: MockClock) -> None:
    async with callers(plan_of(ASSISTANT, "stages.llm.limits.max_inflight_tokens=100")) as it:
        await it.arrive("a", "chat", params=chat(60))
        await it.arrive("b", "chat", params=chat(60))
        await it.arrive("c", "chat", params=chat(40))  # would fit, and came later
        assert it.order == ["a"]
        await it.leave("a")
        assert sorted(it.order) == ["a", "b", "c"]
        await it.arrive("huge", "chat", params=chat(1000))
        await it.leave("b")
        assert "huge" not in it.holding
        await it.leave("c")
        assert "huge" in it.holding  # alone: it would wait for ever


async def test_one_that_needs_two_stages_is_not_kept_out_by_those_that_need_one_each(autojump_clock: MockClock) -> None:
    """Each stage's room is taken at once by who needs that stage alone, and the two are never free together."""
    limits = ("stages.a.limits.max_inflight=2", "stages.b.limits.max_inflight=2", "limits.priority_ageing_s=5")
    async with callers(*limits) as it:
        for i in range(2):
            await it.arrive(f"a{i}", task="tokens")
            await it.arrive(f"b{i}", task="stream")
        await it.arrive("both")
        for i in range(2, 40):
            await it.arrive(f"a{i}", task="tokens")
            await it.arrive(f"b{i}", task="stream")
            await trio.sleep(1.0)
            await it.leave(next(name for name in it.order if name in it.holding and name[0] == "ab"[i % 2]))
            if "both" in it.order:
                break
        assert "both" in it.order
        assert i < 12


async def test_when_one_that_had_a_place_kept_leaves_the_place_is_the_next_ones(autojump_clock: MockClock) -> None:
    limits = ("stages.a.limits.max_inflight=2", "stages.c.limits.max_inflight=1", "limits.priority_ageing_s=5")
    async with callers(*limits) as it:
        await it.arrive("first")
        await it.arrive("old")
        await trio.sleep(6)
        await it.arrive("part", task="tokens")
        assert it.order == ["first"]  # the other place in stage a is kept for the old one
        it.scopes["old"].cancel()
        await wait_all_tasks_blocked()
        assert it.order == ["first", "part"]


async def test_what_waits_costs_no_task_and_little_memory(autojump_clock: MockClock) -> None:
    async with callers("limits.max_inflight=1", "limits.max_queued=5000") as it:
        for i in range(2000):
            it.nursery.start_soon(it._call, f"{i}", Request(task="echo"), trio.current_time() + 50.0)
        await wait_all_tasks_blocked()
        assert it.waiting == 1999
        await trio.sleep(100)
        assert it.waiting == 0
        assert not it.admission.queue.priorities


come = st.tuples(st.sampled_from(["echo", "tokens", "stream"]), st.integers(-1, 1), st.sampled_from(["", "a", "b"]))
move = st.tuples(st.sampled_from(["end", "leave", "done"]), st.integers(0, 50))
LIMITS = ("max_inflight=5", "max_queued=6", "max_per_key=4", "priority_ageing_s=5")
STAGES = ("a.limits.max_inflight=3", "b.limits.max_inflight=2", "c.limits.max_inflight_tokens=3")
NARROW = resolve(
    "stub", platform="cpu", overrides=[*(f"limits.{it}" for it in LIMITS), *(f"stages.{it}" for it in STAGES)]
)


@dataclass
class Clock:
    now: float = 0.0

    def time(self) -> float:
        return self.now


def early_refusal(
    admission: Admission, outline: Request, graph: Subgraph, *, priority_may_drop: bool = False
) -> ErrorInfo | None:
    """Return the early refusal of a request, if there is one: counted once, and nothing else has changed."""
    before, queue = admission.load(), list(admission.queue)
    said = None
    try:
        admission.reject_early(outline, graph, priority_may_drop=priority_may_drop)
    except OmniError as error:
        said = error.info
    after = admission.load()
    assert sum(after.refused.values()) == sum(before.refused.values()) + (said is not None)
    assert replace(after, refused={}) == replace(before, refused={})
    assert list(admission.queue) == queue
    return said


async def test_what_is_known_of_a_request_foretells_its_refusal(autojump_clock: MockClock) -> None:
    async with callers("limits.max_inflight=2", "limits.max_queued=1", "limits.max_per_key=2") as it:
        echo = it.graph("echo")
        assert early_refusal(it.admission, Request(task="echo"), echo) is None
        await it.arrive("a", tenant="red")
        await it.arrive("b", tenant="red")
        told = early_refusal(it.admission, Request(task="echo", tenant="red"), echo)
        assert told is not None
        assert "max_per_key" in told.message
        await it.arrive("c")
        told = early_refusal(it.admission, Request(task="echo"), echo)
        await it.arrive("d")
        assert told is not None
        assert told == it.refused["d"]
        # Who may be more urgent may be let in, in the place of another.
        assert early_refusal(it.admission, Request(task="echo", priority=-1), echo) is None
        assert early_refusal(it.admission, Request(task="echo", priority=1), echo) == told
        it.admission.stage("b", 0, coming=False)
        told = early_refusal(it.admission, Request(task="echo"), echo)
        assert told is not None
        assert (told.code, told.stage) == ("stage_unavailable", "b")
        assert early_refusal(it.admission, Request(task="tokens"), it.graph("tokens")) is None
        it.admission.close(DRAINING)
        assert early_refusal(it.admission, Request(task="tokens"), it.graph("tokens")) == DRAINING


async def test_behind_a_full_line_for_one_stage_nothing_is_foretold_to_who_needs_others(
    autojump_clock: MockClock,
) -> None:
    async with callers("stages.b.limits.max_inflight=1", "limits.max_queued=1") as it:
        await it.arrive("a", "stream")
        await it.arrive("b", "stream")
        assert early_refusal(it.admission, Request(task="stream"), it.graph("stream")) is not None
        assert early_refusal(it.admission, Request(task="tokens"), it.graph("tokens")) is None
        await it.arrive("c", "tokens")
        assert "c" in it.holding


@settings(deadline=None)
@given(st.lists(st.one_of(come, move, st.integers(0, 9)), max_size=120))
def test_whatever_happens_bounds_hold_and_who_is_first_and_fits_is_inside(script: list[Any]) -> None:
    """A number lets so many seconds pass."""
    clock = Clock()
    with mock.patch.object(trio, "current_time", clock.time):
        plan = NARROW
        admission = Admission(plan)
        for stage in plan.stages:
            admission.stage(stage.name, 1, coming=False)
        permits: list[Permit] = []
        waiting: list[PermitWaiter] = []

        def settle() -> None:
            permits.extend(waiter.permit for waiter in waiting if waiter.permit is not None)
            waiting[:] = [waiter for waiter in waiting if not waiter.gone]

        for it in script:
            if isinstance(it, int):
                clock.now += it
                continue
            if len(it) == 3:
                task, priority, tenant = it
                request = Request(task=task, priority=priority, tenant=tenant)
                graph = subgraph(plan, task, ("text",), ("text",))
                whole = early_refusal(admission, request, graph)
                # As little as can be known: it needs stage a, as each task of these two, and may have any priority.
                least = subgraph(plan, "tokens", ("text",), ("text",))
                outline = Request(task="tokens", priority=-1, tenant=tenant)
                guess = early_refusal(admission, outline, least, priority_may_drop=True) if task != "stream" else None
                permit = admission.try_acquire(request, graph)
                said: ErrorInfo | None = None
                if permit is not None:
                    permits.append(permit)
                else:
                    try:
                        waiting.append(admission.enqueue(request, graph))
                    except OmniError as error:
                        said = error.info
                assert whole == said
                assert guess is None or (said is not None and guess.code == said.code)
            elif it[0] == "end" and permits:
                admission.release(permits.pop(it[1] % len(permits)))
            elif it[0] == "leave" and waiting:
                admission.withdraw(waiting.pop(it[1] % len(waiting)))
            elif it[0] == "done" and permits:
                permit = permits[it[1] % len(permits)]
                admission.release_stage(permit, permit.request_class.limits[1].name)
            settle()
            holding: Counter[str] = Counter()
            for permit in permits:
                holding.update(limit.name for limit in permit.request_class.limits if limit not in permit.released)
            load = admission.load()
            assert load.stages == {stage.name: holding[stage.name] for stage in plan.stages}
            assert holding[""] <= 5
            assert holding["a"] <= 3
            assert holding["b"] <= 2
            assert admission.stage_limits["c"].tokens == holding["c"] <= 3
            assert sum(load.running.values()) == len(permits)
            assert sum(load.waiting.values()) == len(waiting) == len(admission.queue) <= 6
            tenants = Counter(filter(None, [*(it.tenant for it in permits), *(it.tenant for it in waiting)]))
            assert admission.tenants == tenants
            assert max(tenants.values(), default=0) <= 4
            heads = admission.queue.heads(trio.current_time(), lambda waiter: waiter.fits())
            assert not heads or not heads[0].fits()
        while permits or waiting:
            for permit in permits:
                admission.release(permit)
            assert permits, "those who wait are not let in"
            permits.clear()
            settle()
        assert not any((*admission.load().stages.values(), *admission.load().running.values(), admission.tenants))
