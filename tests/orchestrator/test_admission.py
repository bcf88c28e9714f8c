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

from omni_actors.orchestrator.admission import RETRY_AFTER_S, Admission, Seat
from omni_actors.pipelines.factory import resolve
from omni_actors.pipelines.plan import Plan
from omni_actors.pipelines.subgraph import Subgraph, subgraph
from omni_actors.protocol.errors import ErrorInfo, OmniError, stage_unavailable
from omni_actors.protocol.params import Sampling
from omni_actors.protocol.request import Request

DRAINING = ErrorInfo(message="bye", code="draining", status=503)


@dataclass
class Door:
    """Callers in front of an :class:`Admission`."""

    plan: Plan
    admission: Admission
    nursery: trio.Nursery
    inside: dict[str, Seat] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)
    refused: dict[str, ErrorInfo] = field(default_factory=dict)
    at: dict[str, float] = field(default_factory=dict)
    """When what became of a caller was known."""
    scopes: dict[str, trio.CancelScope] = field(default_factory=dict)

    async def _call(self, name: str, request: Request, deadline: float) -> None:
        with trio.CancelScope() as self.scopes[name]:
            try:
                self.inside[name] = await self.admission.enter(request, self.graph(request.task), deadline)
                self.order.append(name)
            except OmniError as error:
                self.refused[name] = error.info
            self.at[name] = trio.current_time()

    def graph(self, task: str) -> Subgraph:
        return subgraph(self.plan, task, ("text",), ("text",))

    async def come(self, name: str, task: str = "echo", deadline_s: float = 1000.0, **request: Any) -> None:
        """Somebody comes, and it is seen what becomes of that at once."""
        made = Request(task=task, **request)
        self.nursery.start_soon(self._call, name, made, trio.current_time() + deadline_s)
        await wait_all_tasks_blocked()

    async def go(self, name: str) -> None:
        self.admission.leave(self.inside.pop(name))
        await wait_all_tasks_blocked()

    @property
    def running(self) -> int:
        return sum(self.admission.load().running.values())

    @property
    def waiting(self) -> int:
        return sum(self.admission.load().waiting.values())

    def empty(self) -> bool:
        load = self.admission.load()
        gates = [self.admission._whole, *self.admission._gates.values()]
        counts = [self.running, self.waiting, load.waiting_bytes, len(self.admission._tenants)]
        return not any((*counts, *load.stages.values(), *(gate.tokens + gate.waiting for gate in gates)))


@asynccontextmanager
async def door(*how: str | Plan) -> AsyncIterator[Door]:
    """Of the stub pipeline with these overrides, or of a plan. Left empty, or the test fails."""
    plan = (
        how[0] if how and isinstance(how[0], Plan) else resolve("stub", platform="cpu", overrides=tuple(map(str, how)))
    )
    admission = Admission(plan, lambda stage: stage_unavailable(stage, 7.0))
    for stage in plan.stages:
        admission.stage(stage.name, 1, coming=False)
    async with trio.open_nursery() as nursery:
        it = Door(plan, admission, nursery)
        yield it
        for name in list(it.inside):
            await it.go(name)
        while it.inside:
            await it.go(next(iter(it.inside)))
        assert it.empty()
        nursery.cancel_scope.cancel()


async def test_with_room_nobody_waits_for_a_turn_of_the_loop() -> None:
    async with door() as it:
        request, graph = Request(task="echo"), it.graph("echo")
        with trio.testing.assert_no_checkpoints():
            seat = await it.admission.enter(request, graph, trio.current_time() + 1)
        it.admission.leave(seat)


async def test_over_the_bound_they_wait_and_come_in_as_they_came(autojump_clock: MockClock) -> None:
    async with door("limits.max_inflight=2") as it:
        for name in "abcde":
            await it.come(name)
        assert it.order == ["a", "b"]
        assert it.waiting == 3
        for name in "abc":
            await it.go(name)
        assert it.order == list("abcde")


async def test_a_stage_has_a_bound_of_its_own_and_who_does_not_need_it_passes(autojump_clock: MockClock) -> None:
    async with door("stages.c.limits.max_inflight=1") as it:
        await it.come("whole")
        await it.come("waits")
        await it.come("streams", task="tokens")  # stage a alone
        assert it.order == ["whole", "streams"]
        await it.go("whole")
        assert "waits" in it.order


async def test_a_stage_that_is_done_with_a_request_takes_the_next_one(autojump_clock: MockClock) -> None:
    async with door("stages.a.limits.max_inflight=1") as it:
        await it.come("first")
        await it.come("second")
        it.admission.leave_stage(it.inside["first"], "a")
        it.admission.leave_stage(it.inside["first"], "a")
        await wait_all_tasks_blocked()
        assert it.order == ["first", "second"]
        assert it.admission.load().stages == {"a": 1, "b": 2, "c": 2}
        it.admission.again(it.inside["first"])  # resumed after a death
        assert it.admission.load().stages["a"] == 2
        await it.come("third")
        await it.go("first")
        assert "third" not in it.order
        await it.go("second")
        assert "third" in it.order


async def test_the_line_is_bounded_and_what_is_over_it_is_told_when_to_come_back(autojump_clock: MockClock) -> None:
    async with door("limits.max_inflight=1", "limits.max_queued=2") as it:
        for name in "abcd":
            await it.come(name)
        assert list(it.refused) == ["d"]
        info = it.refused["d"]
        assert (info.status, info.code) == (429, "overloaded")
        assert "max_queued" in info.message
        assert info.retry_after is not None
        assert it.admission.refused == {"queue_full": 1}


async def test_without_a_line_the_answer_is_at_once(autojump_clock: MockClock) -> None:
    async with door("limits.max_inflight=1", "limits.max_queued=0") as it:
        await it.come("a")
        await it.come("b")
        assert it.refused["b"].status == 429
        assert "max_inflight" in it.refused["b"].message


async def test_the_line_is_bounded_in_bytes(autojump_clock: MockClock) -> None:
    async with door("limits.max_inflight=1", "limits.max_queued_bytes=2000") as it:
        await it.come("a")
        await it.come("b", params={"stub": {"text": "x" * 1500}})
        await it.come("c", params={"stub": {"text": "x" * 1500}})
        await it.come("d", params={"stub": {"text": "x" * 100}})
        assert list(it.refused) == ["c"]
        assert "max_queued_bytes" in it.refused["c"].message
        assert it.admission.refused == {"queue_bytes": 1}


async def test_retry_after_is_how_long_those_ahead_take_at_the_measured_rate(autojump_clock: MockClock) -> None:
    async with door("limits.max_inflight=4", "limits.max_queued=20") as it:
        for i in range(24):
            await it.come(f"{i}")
        for i in range(100):  # four every two seconds, as a batch ends
            if i % 4 == 0:
                await trio.sleep(2.0)
            await it.go(f"{i}")
            await it.come(f"{24 + i}")
        await it.come("late")
        assert it.refused["late"].retry_after == pytest.approx(21 * 0.5, rel=0.2)
        await trio.sleep(600)  # nothing ends any more
        await it.come("later")
        assert it.refused["later"].retry_after == RETRY_AFTER_S[1]


async def test_a_rate_is_not_measured_while_nobody_waits(autojump_clock: MockClock) -> None:
    async with door("limits.max_inflight=1", "limits.max_queued=1") as it:
        for i in range(40):
            await it.come(f"{i}")
            await trio.sleep(0.1 if i % 2 else 100.0)
            await it.come(f"w{i}") if i % 2 else None
            await trio.sleep(0.5)
            await it.go(f"{i}")
            if i % 2:
                await trio.sleep(0.5)
                await it.go(f"w{i}")
        await it.come("a")
        await it.come("b")
        await it.come("c")
        assert it.refused["c"].retry_after == pytest.approx(1.0)


async def test_waiting_ends_at_the_requests_deadline(autojump_clock: MockClock) -> None:
    async with door("limits.max_inflight=1") as it:
        await it.come("a")
        await it.come("b", deadline_s=3.0)
        await trio.sleep(10)
        assert it.refused["b"].status == 408
        assert it.at["b"] == pytest.approx(3.0)
        assert it.waiting == 0
        assert it.admission.refused == {"deadline": 1}


async def test_who_leaves_holds_no_place(autojump_clock: MockClock) -> None:
    async with door("limits.max_inflight=1", "limits.max_queued=1") as it:
        await it.come("a")
        await it.come("b")
        it.scopes["b"].cancel()
        await wait_all_tasks_blocked()
        await it.come("c")
        assert not it.refused
        await it.go("a")
        assert it.order == ["a", "c"]


async def test_one_that_is_admitted_as_its_client_leaves_gives_its_seat_back(autojump_clock: MockClock) -> None:
    async with door("limits.max_inflight=1") as it:
        await it.come("a")
        await it.come("b")
        it.admission.leave(it.inside.pop("a"))
        it.scopes["b"].cancel()
        await wait_all_tasks_blocked()
        assert "b" in it.inside  # it has its seat; its caller is cancelled where it next waits, and leaves
        assert it.running == 1


async def test_draining_turns_away_who_waits_and_who_comes(autojump_clock: MockClock) -> None:
    async with door("limits.max_inflight=1") as it:
        await it.come("a")
        await it.come("b")
        it.admission.close(DRAINING)
        await wait_all_tasks_blocked()
        await it.come("c")
        assert it.refused == {"b": DRAINING, "c": DRAINING}


async def test_a_stage_without_a_replica_refuses_those_who_need_it_alone(autojump_clock: MockClock) -> None:
    async with door("limits.max_inflight=1") as it:
        await it.come("a", task="tokens")
        await it.come("whole")
        await it.come("part", task="tokens")
        it.admission.stage("c", 0, coming=False)
        await wait_all_tasks_blocked()
        assert (it.refused["whole"].status, it.refused["whole"].stage) == (503, "c")
        assert it.refused["whole"].retry_after == 7.0
        await it.come("another")
        assert it.refused["another"].stage == "c"
        await it.go("a")
        assert it.order == ["a", "part"]
        it.admission.stage("c", 1, coming=False)
        await it.go("part")
        await it.come("again")
        assert "again" in it.inside


async def test_while_a_replica_is_replaced_those_who_need_it_wait(autojump_clock: MockClock) -> None:
    async with door() as it:
        it.admission.stage("c", 0, coming=True)
        await it.come("whole")
        await it.come("part", task="tokens")
        assert it.order == ["part"]
        assert it.admission.expecting(it.graph("echo"))
        it.admission.stage("c", 1, coming=True)
        await wait_all_tasks_blocked()
        assert it.order == ["part", "whole"]


async def test_bounds_of_a_stage_are_those_of_its_live_replicas(autojump_clock: MockClock) -> None:
    async with door("stages.a.replicas=2", "stages.a.limits.max_inflight=1") as it:
        it.admission.stage("a", 2, coming=False)
        for name in "abcd":
            await it.come(name)
        assert it.order == ["a", "b"]
        it.admission.stage("a", 1, coming=False)
        await it.go("a")
        assert it.order == ["a", "b"]
        it.admission.stage("a", 2, coming=False)
        await wait_all_tasks_blocked()
        assert it.order == ["a", "b", "c"]


async def test_priorities_order_who_waits(autojump_clock: MockClock) -> None:
    async with door("limits.max_inflight=1") as it:
        await it.come("first")
        await it.come("usual")
        await it.come("late", priority=3)
        await it.come("urgent", priority=-1)
        for name in ("first", "urgent", "usual"):
            await it.go(name)
        assert it.order == ["first", "urgent", "usual", "late"]


async def test_a_priority_ages_so_that_none_starves(autojump_clock: MockClock) -> None:
    async with door("limits.max_inflight=1", "limits.priority_ageing_s=5") as it:
        await it.come("0")
        await it.come("late", priority=2)
        for i in range(1, 30):
            await it.come(f"{i}")
            await trio.sleep(1.0)
            await it.go(it.order[-1])
        assert it.order.index("late") == 10


async def test_in_a_full_line_the_urgent_takes_the_place_of_the_last_of_the_others(autojump_clock: MockClock) -> None:
    async with door("limits.max_inflight=1", "limits.max_queued=2") as it:
        await it.come("a")
        await it.come("b", priority=1)
        await it.come("c", priority=1)
        await it.come("urgent")
        assert list(it.refused) == ["c"]
        await it.come("d", priority=1)
        assert list(it.refused) == ["c", "d"]


async def test_tenants_take_turns_and_a_flood_does_not_fill_the_line_for_others(autojump_clock: MockClock) -> None:
    async with door("limits.max_inflight=1", "limits.max_queued=10") as it:
        for i in range(30):
            await it.come(f"flood{i}", tenant="flood")
        for i in range(3):
            await it.come(f"few{i}", tenant="few")
        assert not [name for name in it.refused if name.startswith("few")]
        assert it.waiting == 10
        for _ in range(7):
            await it.go(it.order[-1])
        assert sorted(name for name in it.order if name.startswith("few")) == ["few0", "few1", "few2"]


async def test_a_key_has_a_limit_over_which_it_is_told_so(autojump_clock: MockClock) -> None:
    async with door("limits.max_inflight=1", "limits.max_per_key=2") as it:
        for name in "abc":
            await it.come(name, tenant="greedy")
        await it.come("d", tenant="modest")
        assert list(it.refused) == ["c"]
        assert it.refused["c"].status == 429
        assert "2 requests" in it.refused["c"].message
        assert "max_per_key" in it.refused["c"].message
        assert "greedy" not in it.refused["c"].message
        await it.go("a")
        await it.come("e", tenant="greedy")
        assert "e" not in it.refused


def chat(tokens: int) -> dict[str, Any]:
    """Parameters of a chat that is estimated at so many tokens."""
    return {"sampling": Sampling(max_tokens=tokens)}


async def test_a_bound_of_tokens_counts_what_requests_are_estimated_at(autojump_clock: MockClock) -> None:
    async with door(plan_of(ASSISTANT, "stages.llm.limits.max_inflight_tokens=100")) as it:
        await it.come("a", "chat", params=chat(60))
        await it.come("b", "chat", params=chat(60))
        await it.come("c", "chat", params=chat(40))  # would fit, and came later
        assert it.order == ["a"]
        await it.go("a")
        assert sorted(it.order) == ["a", "b", "c"]
        await it.come("huge", "chat", params=chat(1000))
        await it.go("b")
        assert "huge" not in it.inside
        await it.go("c")
        assert "huge" in it.inside  # alone: it would wait for ever


async def test_one_that_needs_two_stages_is_not_kept_out_by_those_that_need_one_each(autojump_clock: MockClock) -> None:
    """Each stage's room is taken at once by who needs that stage alone, and the two are never free together."""
    limits = ("stages.a.limits.max_inflight=2", "stages.b.limits.max_inflight=2", "limits.priority_ageing_s=5")
    async with door(*limits) as it:
        for i in range(2):
            await it.come(f"a{i}", task="tokens")
            await it.come(f"b{i}", task="stream")
        await it.come("both")
        for i in range(2, 40):
            await it.come(f"a{i}", task="tokens")
            await it.come(f"b{i}", task="stream")
            await trio.sleep(1.0)
            await it.go(next(name for name in it.order if name in it.inside and name[0] == "ab"[i % 2]))
            if "both" in it.order:
                break
        assert "both" in it.order
        assert i < 12


async def test_when_one_that_had_a_place_kept_leaves_the_place_is_the_next_ones(autojump_clock: MockClock) -> None:
    limits = ("stages.a.limits.max_inflight=2", "stages.c.limits.max_inflight=1", "limits.priority_ageing_s=5")
    async with door(*limits) as it:
        await it.come("first")
        await it.come("old")
        await trio.sleep(6)
        await it.come("part", task="tokens")
        assert it.order == ["first"]  # the other place in stage a is kept for the old one
        it.scopes["old"].cancel()
        await wait_all_tasks_blocked()
        assert it.order == ["first", "part"]


async def test_what_waits_costs_no_task_and_little_memory(autojump_clock: MockClock) -> None:
    async with door("limits.max_inflight=1", "limits.max_queued=5000") as it:
        for i in range(2000):
            it.nursery.start_soon(it._call, f"{i}", Request(task="echo"), trio.current_time() + 50.0)
        await wait_all_tasks_blocked()
        assert it.waiting == 1999
        await trio.sleep(100)
        assert it.waiting == 0
        assert not it.admission._line._classes


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


def foreseen(admission: Admission, outline: Request, graph: Subgraph, *, or_later: bool = False) -> ErrorInfo | None:
    """What is said before anybody comes: counted once if it is a refusal; nothing else has changed."""
    before, line = admission.load(), list(admission._line)
    said = None
    try:
        admission.foresee(outline, graph, or_later=or_later)
    except OmniError as error:
        said = error.info
    after = admission.load()
    assert sum(after.refused.values()) == sum(before.refused.values()) + (said is not None)
    assert replace(after, refused={}) == replace(before, refused={})
    assert list(admission._line) == line
    return said


async def test_what_is_known_of_a_request_foretells_its_refusal(autojump_clock: MockClock) -> None:
    async with door("limits.max_inflight=2", "limits.max_queued=1", "limits.max_per_key=2") as it:
        echo = it.graph("echo")
        assert foreseen(it.admission, Request(task="echo"), echo) is None
        await it.come("a", tenant="red")
        await it.come("b", tenant="red")
        told = foreseen(it.admission, Request(task="echo", tenant="red"), echo)
        assert told is not None
        assert "max_per_key" in told.message
        await it.come("c")
        told = foreseen(it.admission, Request(task="echo"), echo)
        await it.come("d")
        assert told is not None
        assert told == it.refused["d"]
        # Who may be more urgent may be let in, in the place of another.
        assert foreseen(it.admission, Request(task="echo", priority=-1), echo) is None
        assert foreseen(it.admission, Request(task="echo", priority=1), echo) == told
        it.admission.stage("b", 0, coming=False)
        told = foreseen(it.admission, Request(task="echo"), echo)
        assert told is not None
        assert (told.code, told.stage) == ("stage_unavailable", "b")
        assert foreseen(it.admission, Request(task="tokens"), it.graph("tokens")) is None
        it.admission.close(DRAINING)
        assert foreseen(it.admission, Request(task="tokens"), it.graph("tokens")) == DRAINING


async def test_behind_a_full_line_for_one_stage_nothing_is_foretold_to_who_needs_others(
    autojump_clock: MockClock,
) -> None:
    async with door("stages.b.limits.max_inflight=1", "limits.max_queued=1") as it:
        await it.come("a", "stream")
        await it.come("b", "stream")
        assert foreseen(it.admission, Request(task="stream"), it.graph("stream")) is not None
        assert foreseen(it.admission, Request(task="tokens"), it.graph("tokens")) is None
        await it.come("c", "tokens")
        assert "c" in it.inside


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
        seats: list[Seat] = []
        waiting: list[Any] = []

        def settle() -> None:
            seats.extend(waiter.seat for waiter in waiting if waiter.seat is not None)
            waiting[:] = [waiter for waiter in waiting if not waiter.gone]

        for it in script:
            if isinstance(it, int):
                clock.now += it
                continue
            if len(it) == 3:
                task, priority, tenant = it
                request = Request(task=task, priority=priority, tenant=tenant)
                graph = subgraph(plan, task, ("text",), ("text",))
                whole = foreseen(admission, request, graph)
                # As little as can be known: it needs stage a, as each task of these two, and may have any priority.
                least = subgraph(plan, "tokens", ("text",), ("text",))
                outline = Request(task="tokens", priority=-1, tenant=tenant)
                guess = foreseen(admission, outline, least, or_later=True) if task != "stream" else None
                seat = admission.try_enter(request, graph)
                said: ErrorInfo | None = None
                if seat is not None:
                    seats.append(seat)
                else:
                    try:
                        waiting.append(admission._join(request, graph))
                    except OmniError as error:
                        said = error.info
                assert whole == said
                assert guess is None or (said is not None and guess.code == said.code)
            elif it[0] == "end" and seats:
                admission.leave(seats.pop(it[1] % len(seats)))
            elif it[0] == "leave" and waiting:
                admission._withdraw(waiting.pop(it[1] % len(waiting)))
            elif it[0] == "done" and seats:
                seat = seats[it[1] % len(seats)]
                admission.leave_stage(seat, seat.shape.gates[1].name)
            settle()
            holding: Counter[str] = Counter()
            for seat in seats:
                holding.update(gate.name for gate in seat.shape.gates if gate not in seat.free)
            load = admission.load()
            assert load.stages == {stage.name: holding[stage.name] for stage in plan.stages}
            assert holding[""] <= 5
            assert holding["a"] <= 3
            assert holding["b"] <= 2
            assert admission._gates["c"].tokens == holding["c"] <= 3
            assert sum(load.running.values()) == len(seats)
            assert sum(load.waiting.values()) == len(waiting) == len(admission._line) <= 6
            tenants = Counter(it.tenant for it in (*seats, *waiting) if it.tenant)
            assert admission._tenants == tenants
            assert max(tenants.values(), default=0) <= 4
            heads = admission._line.heads(trio.current_time(), lambda waiter: waiter.fits())
            assert not heads or not heads[0].fits()
        while seats or waiting:
            for seat in seats:
                admission.leave(seat)
            assert seats, "those who wait are not let in"
            seats.clear()
            settle()
        assert not any((*admission.load().stages.values(), *admission.load().running.values(), admission._tenants))
