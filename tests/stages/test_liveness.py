"""A worker that is alive but stuck counts as dead; one that is idle, waits, or takes the time it may is left alone."""

from __future__ import annotations

import mmap
import os
import select
import signal
import time
from dataclasses import dataclass, replace

import pytest
import trio
import trio.testing
from tests.orchestrator.spine import collect, stub, stub_orchestrator, text_of, until

from omni_actors.orchestrator import open_orchestrator
from omni_actors.pipelines.factory import resolve
from omni_actors.protocol.errors import OmniError
from omni_actors.protocol.liveness import HEARTBEAT_S, PAGE_BYTES, Activity
from omni_actors.stages.liveness import GRACE_S, WAIT_BUDGET_S, Heartbeat, LivenessPage, Watch, budget_s
from omni_actors.worker.liveness import Liveness

Clock = trio.testing.MockClock

STAGE = replace(
    resolve("stub").stage("a"), start_timeout_s=100.0, step_budget_s=20.0, compile_budget_s=50.0
)  # waits get WAIT_BUDGET_S, 10 s


@dataclass
class Bench:
    """A watch in virtual time, over a page that the test writes."""

    beat: Heartbeat
    work: bool = True
    why: str | None = None

    def __post_init__(self) -> None:
        self.watch = Watch(STAGE, self, lambda: self.work, clock=trio.current_time)

    def read(self) -> Heartbeat:
        return self.beat

    def moves(self, activity: Activity) -> None:
        self.beat = Heartbeat(self.beat.turns + 1, activity, trio.current_time())

    async def stuck_after(self, limit_s: float) -> float | None:
        """When the watch gives up, in seconds from now; ``None`` if it does not within the limit."""
        begun = trio.current_time()
        with trio.move_on_after(limit_s):
            self.why = await self.watch.until_stuck()
            return trio.current_time() - begun
        return None


def bench(activity: Activity, work: bool = True) -> Bench:
    return Bench(Heartbeat(1, activity, trio.current_time()), work)


@pytest.mark.parametrize("activity", list(Activity))
async def test_who_does_not_move_is_stuck_after_his_budget_and_not_before(
    autojump_clock: Clock, activity: Activity
) -> None:
    it = bench(activity)
    assert await it.stuck_after(1000) == pytest.approx(budget_s(STAGE, activity) + GRACE_S)
    assert it.why is not None


async def test_who_claims_to_have_moved_in_the_future_is_stuck_all_the_same(autojump_clock: Clock) -> None:
    it = Bench(Heartbeat(1, Activity.WORKING, trio.current_time() + 1e6))
    assert await it.stuck_after(1000) == pytest.approx(budget_s(STAGE, Activity.WORKING) + GRACE_S)


async def test_who_moves_is_left_alone(autojump_clock: Clock) -> None:
    it = bench(Activity.WORKING)

    async def worker() -> None:
        for _ in range(50):
            await trio.sleep(19.9)
            it.moves(Activity.WORKING)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker)
        assert await it.stuck_after(50 * 19.9) is None


async def test_who_has_no_work_may_stand_still_for_ever_and_is_timed_from_when_it_gets_some(
    autojump_clock: Clock,
) -> None:
    it = bench(Activity.WAITING, work=False)
    assert await it.stuck_after(10_000) is None

    async def client() -> None:
        await trio.sleep(500)
        it.work = True
        it.watch.work_begins()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(client)
        assert await it.stuck_after(10_000) == pytest.approx(510 + GRACE_S)


async def test_who_is_stuck_in_something_short_after_something_long_is_found_out_in_time(autojump_clock: Clock) -> None:
    it = bench(Activity.COMPILING)

    async def worker() -> None:
        await trio.sleep(1)
        it.moves(Activity.WAITING)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker)
        assert await it.stuck_after(1000) == pytest.approx(11 + GRACE_S)


@pytest.mark.parametrize("suspended_at", [5.0, 20.0 + GRACE_S / 2])
async def test_time_in_which_everybody_stood_still_is_nobodys(autojump_clock: Clock, suspended_at: float) -> None:
    it = bench(Activity.WORKING)

    async def suspend() -> None:
        await trio.sleep(suspended_at)
        autojump_clock.jump(3600)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(suspend)
        after = await it.stuck_after(10_000)
        assert after is not None
        slept = WAIT_BUDGET_S if suspended_at < 20 else GRACE_S  # at most, of what it stood still
        assert 3600 + 20 - slept <= after <= 3600 + 20 + 2 * GRACE_S


async def test_who_moves_in_the_last_moment_lives(autojump_clock: Clock) -> None:
    it = bench(Activity.WORKING)

    async def worker() -> None:
        await trio.sleep(20 + GRACE_S / 2)  # late, but this process may have been late to look
        it.moves(Activity.WAITING)
        it.work = False

    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker)
        assert await it.stuck_after(1000) is None


def test_a_page_says_what_its_worker_wrote() -> None:
    page = LivenessPage()
    assert page.read().activity is Activity.LOADING
    liveness = Liveness(os.dup(page.fd))
    page.handed_over()
    before = time.monotonic()
    liveness.turn()
    liveness.enter(Activity.COMPILING)
    beat = page.read()
    assert (beat.turns, beat.activity) == (1, Activity.COMPILING)
    assert before <= beat.moved <= time.monotonic()
    liveness.close()
    assert page.read() == beat  # what a dead one wrote stays
    page.close()


def test_a_worker_cannot_take_its_page_away() -> None:
    page = LivenessPage()
    with pytest.raises(PermissionError):
        os.ftruncate(page.fd, 0)
    page.close()


# --- real workers ----------------------------------------------------------------------------------------------------

QUICK = "stages.b.step_budget_s=1"
"""Of a worker of stage b: 1 s in a step, two heartbeats while it waits."""
MARGIN_S = 2.0


async def test_a_worker_that_is_stopped_while_it_waits_for_input_is_found_out() -> None:
    async with stub_orchestrator(QUICK, "limits.max_resumes=0") as orchestrator:
        b = orchestrator.pools["b"].replicas[0]
        async with orchestrator.open(stub(stall="a")) as stream:
            await until(lambda: bool(b.requests))
            assert b.pid is not None
            os.kill(b.pid, signal.SIGSTOP)
            stopped = trio.current_time()
            with pytest.raises(OmniError) as failed:
                await stream.receive()
            took = trio.current_time() - stopped
        assert failed.value.info.code == "stage_died"
        assert took < 2 * HEARTBEAT_S + GRACE_S + MARGIN_S
        assert b.history.last_exit is not None
        assert (b.history.last_exit.cause, b.history.exits["stuck"]) == ("stuck", 1)
        assert "no sign of life" in b.history.last_exit.error.message
        await until(lambda: b.live)
        assert text_of(await collect(orchestrator, stub(text="next"))) == "next"


async def test_what_a_stuck_worker_tells_in_its_last_moment_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    async with stub_orchestrator(QUICK.replace("stages.b", "stages.c"), "limits.max_resumes=0") as orchestrator:
        c = orchestrator.pools["c"].replicas[0]
        child, pid = c._child, c.pid
        assert child is not None
        assert pid is not None
        end = child.kill

        def wake_and_end() -> None:
            os.kill(pid, signal.SIGCONT)
            assert select.select([child.sock], [], [], 10)[0]
            end()

        monkeypatch.setattr(child, "kill", wake_and_end)
        os.kill(pid, signal.SIGSTOP)
        assert text_of(await collect(orchestrator, stub(text="late"))) == "late"
        await until(lambda: c.live and c.incarnation == 2)
        assert c.history.exits["stuck"] == 1


async def test_a_worker_that_does_not_come_back_from_a_step_is_killed_and_replaced() -> None:
    overrides = ["stages.b.options.step_s=60", "stages.b.compile_budget_s=1", "limits.max_resumes=0"]
    async with open_orchestrator(resolve("stub", overrides=[QUICK, *overrides])) as orchestrator:
        await orchestrator.wait_ready()
        b = orchestrator.pools["b"].replicas[0]
        begun = trio.current_time()
        with pytest.raises(OmniError) as failed:
            await collect(orchestrator, stub(text="x"))
        assert failed.value.info.code == "stage_died"
        assert 0.9 < trio.current_time() - begun < 1 + GRACE_S + MARGIN_S
        assert b.history.exits["stuck"] == 1
        await until(lambda: b.live and b.incarnation == 2)


async def test_a_worker_that_hangs_while_it_loads_is_killed_and_started_again() -> None:
    overrides = ["stages.b.options.load_s=60", "stages.b.start_timeout_s=1"]
    async with open_orchestrator(resolve("stub", overrides=overrides)) as orchestrator:
        b = orchestrator.pools["b"].replicas[0]
        begun = trio.current_time()
        await until(lambda: b.incarnation == 2)
        assert 0.9 < trio.current_time() - begun < 1 + MARGIN_S
        assert b.history.exits["start"] == 1
        assert b.last_error is not None
        assert "not ready after 1 s" in b.last_error.message


async def test_who_waits_for_input_or_takes_a_long_allowed_step_is_never_killed() -> None:
    overrides = [*(f"stages.{name}.step_budget_s=1" for name in "abc"), "stages.b.options.step_s=0.8"]
    async with stub_orchestrator(*overrides) as orchestrator:
        texts: list[str] = []

        async def one(number: int) -> None:
            texts.append(text_of(await collect(orchestrator, stub(text=str(number)))))
            if number < 3:
                await one(number + 1)

        async with orchestrator.open(stub(stall="a")):  # which never answers: a, b and c have it all the while
            begun = trio.current_time()
            async with trio.open_nursery() as nursery:
                for _ in range(2):  # b has a step of 0.8 s after the other
                    nursery.start_soon(one, 0)
            await trio.sleep_until(begun + 2 * HEARTBEAT_S + GRACE_S + 0.5)
        assert sorted(texts) == sorted("01230123")
        assert all(pool.replicas[0].incarnation == 1 for pool in orchestrator.pools.values())


async def test_who_waits_for_credit_is_never_killed() -> None:
    """Its consumer is slow: what the producer has cannot leave, and it stands still but for its heart."""
    overrides = ["stages.a.step_budget_s=1", "stages.b.options.step_s=3", "edges.b.text.capacity=1"]
    async with stub_orchestrator(*overrides) as orchestrator:
        await collect(orchestrator, stub(text="x", pieces=3, bytes=100_000))
        assert orchestrator.pools["a"].replicas[0].incarnation == 1


def test_a_page_with_anything_in_it_can_be_read() -> None:
    """A worker that writes over its memory ends by its budget, and takes nobody along."""
    page = LivenessPage()
    try:
        with mmap.mmap(page.fd, PAGE_BYTES) as theirs:
            theirs[:24] = b"\xff" * 24
            assert page.read().activity is Activity.WORKING
    finally:
        page.close()
