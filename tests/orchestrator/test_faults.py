"""What must not take more with it than itself: values, sizes, deaths at a bad moment, workers that do not listen."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trio

from omni_actors import Omni
from omni_actors.entrypoints.offline.calls import Batch, RequestCall, Terms
from omni_actors.orchestrator import RequestStream, open_orchestrator
from omni_actors.pipelines.factory import resolve
from omni_actors.protocol.errors import OmniError
from omni_actors.protocol.frames import INLINE_LIMIT
from omni_actors.protocol.request import Request, StageDone, Usage
from omni_actors.stages.replica import StageReplica

from .spine import NO_RESUMES, collect, idle, kill, replicas, stub, stub_orchestrator, text_of, until


@pytest.mark.parametrize("value", [2**70, object(), "\ud800"], ids=["integer", "object", "surrogate"])
async def test_a_value_that_cannot_be_sent_is_refused_and_holds_nothing(value: object) -> None:
    async with stub_orchestrator() as orchestrator:
        with pytest.raises(OmniError) as refused:
            await collect(orchestrator, stub(text="x", more=value))
        assert refused.value.info.status == 400
        await idle(orchestrator)


async def test_a_request_over_the_frame_limit_is_refused_and_no_worker_dies() -> None:
    async with (
        stub_orchestrator("stages.a.options.step_s=0.001") as orchestrator,
        orchestrator.open(stub("tokens", tokens=10**9)) as other,
    ):
        await other.receive()
        with pytest.raises(OmniError) as refused:
            await collect(orchestrator, stub(text="x" * (17 << 20)))
        assert refused.value.info.status == 413
        for _ in range(100):
            await other.receive()
        assert all(replica.incarnation == 1 for replica in replicas(orchestrator))


async def test_output_over_the_frame_limit_fails_its_request_alone() -> None:
    async with (
        stub_orchestrator("stages.a.options.step_s=0.001") as orchestrator,
        orchestrator.open(stub("tokens", tokens=10**9)) as other,
    ):
        await other.receive()
        with trio.fail_after(5), pytest.raises(OmniError) as failed:
            await collect(orchestrator, stub(text="x" * (5 << 20)))
        assert (failed.value.info.status, failed.value.info.stage) == (500, "a")
        for _ in range(100):
            await other.receive()
        assert text_of(await collect(orchestrator, stub(text="next"))) == "next"
        assert all(replica.incarnation == 1 for replica in replicas(orchestrator))


async def test_a_producer_that_dies_with_output_in_its_hands_fails_the_request_at_once() -> None:
    async with stub_orchestrator(NO_RESUMES, "edges.b.text.capacity=1000") as orchestrator:
        a, b = (orchestrator.pools[name].replicas[0] for name in "ab")
        assert b.pid is not None
        os.kill(b.pid, signal.SIGSTOP)
        error: list[OmniError] = []

        async def victim() -> None:
            try:
                await collect(orchestrator, stub(text="x", pieces=800, bytes=INLINE_LIMIT))
            except OmniError as caught:
                error.append(caught)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(victim)
            # Its steps are over (13 MB wait for b, more than a socket takes), so it would be done if b listened.
            with trio.fail_after(10):
                while (await a.query("counters"))["steps_total"] < 800:
                    await trio.sleep(0.01)
            kill(a.pid)
            with trio.fail_after(5):
                await until(lambda: bool(error))
            os.kill(b.pid, signal.SIGCONT)
        assert error[0].info.code == "stage_died"
        with trio.fail_after(10):
            await until(lambda: orchestrator.ready)
        assert text_of(await collect(orchestrator, stub(text="next"))) == "next"


async def test_a_producer_that_dies_after_it_is_done_takes_nothing_with_it() -> None:
    async with stub_orchestrator() as orchestrator:
        a, b = (orchestrator.pools[name].replicas[0] for name in "ab")
        for size in (0, 1000, 1 << 20):  # in a frame's metadata, in a frame, in a slab
            assert b.pid is not None
            os.kill(b.pid, signal.SIGSTOP)
            result: list[str] = []

            async def one(size: int = size, result: list[str] = result) -> None:
                result.append(text_of(await collect(orchestrator, stub(text="kept", bytes=size))))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(one)
                await until(lambda: any("a" in record.usage for record in orchestrator.inflight.values()))
                kill(a.pid)
                await until(lambda: not a.live)
                os.kill(b.pid, signal.SIGCONT)
            assert result[0].startswith("kept")
            with trio.fail_after(10):
                await until(lambda: orchestrator.ready)


async def test_a_worker_that_does_not_let_go_of_a_request_is_replaced() -> None:
    async with stub_orchestrator("limits.release_timeout_s=0.5") as orchestrator:
        b = orchestrator.pools["b"].replicas[0]
        assert b.pid is not None
        os.kill(b.pid, signal.SIGSTOP)
        with pytest.raises(OmniError) as late:
            await collect(orchestrator, stub(text="x", deadline_s=0.2))
        assert late.value.info.status == 408
        with trio.fail_after(10):
            await until(lambda: not orchestrator.inflight)
            await until(lambda: b.live and b.incarnation == 2)
        assert text_of(await collect(orchestrator, stub(text="next"))) == "next"


async def test_only_the_worker_that_does_not_let_go_is_replaced() -> None:
    """Its producer cannot let go of what the other has not read; that is not its fault."""
    async with stub_orchestrator("limits.release_timeout_s=0.5") as orchestrator:
        a, b, c = (orchestrator.pools[name].replicas[0] for name in "abc")
        assert b.pid is not None
        os.kill(b.pid, signal.SIGSTOP)
        with pytest.raises(OmniError):
            await collect(orchestrator, stub(text="x", deadline_s=0.2, bytes=100_000))
        with trio.fail_after(10):
            await until(lambda: b.live and b.incarnation == 2)
        assert (a.incarnation, c.incarnation) == (1, 1)
        assert text_of(await collect(orchestrator, stub(text="next"))) == "next"


async def test_both_are_replaced_if_neither_lets_go() -> None:
    async with stub_orchestrator("limits.release_timeout_s=0.5") as orchestrator:
        a, b = (orchestrator.pools[name].replicas[0] for name in "ab")
        assert a.pid is not None
        assert b.pid is not None
        for pid in (a.pid, b.pid):
            os.kill(pid, signal.SIGSTOP)
        with pytest.raises(OmniError):
            await collect(orchestrator, stub(text="x", deadline_s=0.2))
        with trio.fail_after(10):
            await until(lambda: not orchestrator.inflight)
            await until(lambda: a.live and b.live)
        assert (a.incarnation, b.incarnation) == (2, 2)
        assert text_of(await collect(orchestrator, stub(text="next"))) == "next"


async def test_a_stage_that_ends_before_its_input_does_not_hold_up_its_producer() -> None:
    async with stub_orchestrator("edges.b.text.capacity=4") as orchestrator:
        for size in (0, 100_000):
            with trio.fail_after(5):
                text_of(await collect(orchestrator, stub(text="x", pieces=50, bytes=size, early="b")))
            await idle(orchestrator)


def mapped_slabs(replica: StageReplica) -> int:
    return len(re.findall(r"memfd:omni-slab", Path(f"/proc/{replica.pid}/maps").read_text()))


async def test_consumers_forget_slabs_that_their_producer_has_closed() -> None:
    async with stub_orchestrator("stages.a.limits.arena_bytes=1048576") as orchestrator:
        b = orchestrator.pools["b"].replicas[0]
        for i in range(20):  # changing size classes, each over the budget
            await collect(orchestrator, stub(text="", bytes=(1 + i % 3) << 20))
        with trio.fail_after(5):  # the last word about it may be on its way still
            await until(lambda: mapped_slabs(b) <= 4)


async def test_leaving_while_a_stage_loads_is_quick() -> None:
    plan = resolve("stub", overrides=["stages.b.options.load_s=20"])
    with trio.fail_after(4):
        async with open_orchestrator(plan) as orchestrator:
            await until(lambda: orchestrator.pools["a"].replicas[0].live)


async def test_leaving_between_two_lives_of_a_worker_begins_no_other() -> None:
    plan = resolve("stub", overrides=["limits.restart_delay_s=0.3", "limits.stop_grace_s=0.5"])
    async with open_orchestrator(plan) as orchestrator:
        with trio.fail_after(20):
            await orchestrator.wait_ready()
        a, b, *_ = replicas(orchestrator)
        assert b.pid is not None
        os.kill(b.pid, signal.SIGSTOP)  # it takes its time to end
        kill(a.pid)
        with trio.fail_after(5):
            await until(lambda: a.pid is None)
    assert a.incarnation == 1


async def test_wedged_workers_are_ended_side_by_side() -> None:
    plan = resolve("stub", overrides=["stages.b.replicas=4", "limits.stop_grace_s=1"])
    async with open_orchestrator(plan) as orchestrator:
        with trio.fail_after(20):
            await orchestrator.wait_ready()
        for replica in replicas(orchestrator):
            assert replica.pid is not None
            os.kill(replica.pid, signal.SIGSTOP)
        begun = trio.current_time()
    assert trio.current_time() - begun < 4


async def test_two_tasks_cannot_receive_from_one_request() -> None:
    async with stub_orchestrator() as orchestrator, orchestrator.open(stub(stall="a")) as stream:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.receive)
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(trio.BusyResourceError):
                await stream.receive()
            nursery.cancel_scope.cancel()


async def test_input_after_its_end_is_the_callers_mistake() -> None:
    async with stub_orchestrator() as orchestrator, orchestrator.open(stub("stream")) as stream:
        await stream.feed("text", "text", {"text": "x"}, end=True)
        with pytest.raises(OmniError) as refused:
            await stream.feed("text", "text", {"text": "y"})
        assert refused.value.info.status == 400
        assert text_of([event async for event in stream]) == "x"


@dataclass(frozen=True)
class StubBatch(Batch):
    """A batch of requests to the stub pipeline, which has no chats."""

    requests: Sequence[Request] = ()

    def calls(self) -> list[Any]:
        return [RequestCall(self.terms, request) for request in self.requests]


def batch(requests: Sequence[Request], on_done: Callable[[int, object], None] | None = None) -> StubBatch:
    return StubBatch(Terms(), [], None, ("text",), "default", False, on_done, requests)


def test_omni_waits_for_room_within_its_own_deployment() -> None:
    with Omni("stub", overrides=["limits.max_inflight=2"]) as omni:
        outputs = omni._ask_all(batch([stub(text=str(i), bytes=200_000) for i in range(30)]))
        assert [output.text.split()[0] for output in outputs] == [str(i) for i in range(30)]


def test_what_on_done_raises_comes_out_as_it_is() -> None:
    def on_done(_i: int, _output: object) -> None:
        raise ZeroDivisionError

    with Omni("stub") as omni, pytest.raises(ZeroDivisionError):
        omni._ask_all(batch([stub(text=text) for text in "xy"], on_done))


async def test_a_stage_that_says_twice_that_it_is_done_is_done_once() -> None:
    async with stub_orchestrator() as orchestrator, orchestrator.open(stub(text="x", stall="c")) as stream:
        with trio.fail_after(5):
            await until(lambda: {"a", "b"} <= stream.usage.keys())
        for _ in range(3):
            stream.on_done(orchestrator.pools["a"].replicas[0], StageDone(stream.key, Usage()))
        assert stream.state.live


async def test_a_block_that_is_left_while_an_event_is_received_ends_the_channel() -> None:
    """Also at the event before which other tasks get a turn."""
    async with stub_orchestrator() as orchestrator:
        for _ in range(10):
            stream = orchestrator.open(stub("tokens", tokens=80))
            await stream.__aenter__()
            while stream.state.live:
                await trio.sleep(0.005)
            for _ in range(63):
                await stream.receive()
            receiving = trio.Event()
            ended: list[BaseException] = []

            async def receive(
                stream: RequestStream = stream, begun: trio.Event = receiving, ended: list[BaseException] = ended
            ) -> None:
                begun.set()
                try:
                    await stream.receive()
                except trio.EndOfChannel as end:
                    ended.append(end)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(receive)
                await receiving.wait()
                await stream.__aexit__(None, None, None)
            with pytest.raises(trio.EndOfChannel):
                await stream.receive()
