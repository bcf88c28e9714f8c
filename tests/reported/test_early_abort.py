"""A request is aborted in the first of its three stages."""

from __future__ import annotations

import pytest
import trio
from tests.orchestrator.spine import collect, idle, replicas, stub, stub_orchestrator, text_of, until

from omni_actors.protocol.request import TextDelta
from omni_actors.protocol.states import RequestState


async def test_an_abort_ends_once_and_is_acknowledged_by_all_stages() -> None:
    async with stub_orchestrator("stages.a.options.step_s=0.005") as orchestrator:
        async with orchestrator.open(stub(text="x", pieces=10**6)) as stream:
            with trio.fail_after(5):
                await until(lambda: all(len(replica.requests) == 1 for replica in replicas(orchestrator)))
        assert stream.state is RequestState.CANCELLED
        with pytest.raises(trio.EndOfChannel):
            await stream.receive()
        with trio.fail_after(5):
            await until(lambda: stream.state is RequestState.RELEASED)  # type: ignore[comparison-overlap]
        assert not any(replica.requests for replica in replicas(orchestrator))
        assert text_of(await collect(orchestrator, stub(text="next"))) == "next"


async def test_the_caller_keeps_what_it_had() -> None:
    async with stub_orchestrator("stages.a.options.step_s=0.005") as orchestrator:
        had = []
        async with orchestrator.open(stub("tokens", tokens=10**6)) as stream:
            async for event in stream:
                assert isinstance(event, TextDelta)
                had.append(event.text)
                if len(had) == 5:
                    break
        assert had == ["x"] * 5
        with trio.fail_after(5):
            await idle(orchestrator)


async def test_a_thousand_aborts_at_any_time_and_then_a_normal_request() -> None:
    async with stub_orchestrator() as orchestrator:

        async def one(i: int) -> None:
            with trio.move_on_after((i * 7919 % 100) / 4000):
                await collect(orchestrator, stub(text="x", pieces=i % 20 + 1, bytes=i % 3 * 30_000))

        with trio.fail_after(25):
            for _ in range(10):
                async with trio.open_nursery() as nursery:
                    for i in range(100):
                        nursery.start_soon(one, i)
            await idle(orchestrator)
        assert text_of(await collect(orchestrator, stub(text="normal"))) == "normal"
        assert all(replica.incarnation == 1 for replica in replicas(orchestrator))
