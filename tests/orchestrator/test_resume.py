"""A worker's death costs its requests time, and nothing else: they go on in another attempt."""

from __future__ import annotations

import pytest
import trio

from omni_actors.orchestrator import Orchestrator
from omni_actors.protocol.errors import OmniError
from omni_actors.protocol.request import Request

from .spine import collect, idle, kill, replicas, stub, stub_orchestrator, text_of, until

TOKENS = 60


def streams(count: int) -> list[Request]:
    return [stub("tokens", tokens=TOKENS, id=f"r{i}") for i in range(count)]


async def run_all(orchestrator: Orchestrator, requests: list[Request]) -> dict[str, str | OmniError]:
    """Each request's text, or how it failed."""
    ends: dict[str, str | OmniError] = {}

    async def run(request: Request) -> None:
        assert request.id is not None
        try:
            ends[request.id] = text_of(await collect(orchestrator, request))
        except OmniError as error:
            ends[request.id] = error

    async with trio.open_nursery() as nursery:
        for request in requests:
            nursery.start_soon(run, request)
    return ends


def running(orchestrator: Orchestrator, count: int) -> bool:
    return sum(record.state.value == "running" for record in orchestrator.inflight.values()) >= count


@pytest.mark.parametrize("count", [1, 2])
async def test_streams_go_on_behind_what_was_said(count: int) -> None:
    """With one replica once it is back, with two at once; nothing is said twice, nothing is left out."""
    async with stub_orchestrator("stages.a.options.step_s=0.01", f"stages.a.replicas={count}") as orchestrator:
        ends: dict[str, str | OmniError] = {}

        async def clients() -> None:
            ends.update(await run_all(orchestrator, streams(8)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(clients)
            with trio.fail_after(20):
                await until(lambda: running(orchestrator, 8))
                kill(orchestrator.pools["a"].replicas[0].pid)
        assert ends == {f"r{i}": "x" * TOKENS for i in range(8)}
        assert orchestrator.recovery.resumed["a"] == 8 // count
        await idle(orchestrator)


@pytest.mark.parametrize("stage", ["a", "b", "c"])
async def test_any_stage_may_die_in_mid_request(stage: str) -> None:
    async with stub_orchestrator("stages.b.options.step_s=0.02") as orchestrator:
        request = stub(text="ab", pieces=10, bytes=20_000)
        expected = text_of(await collect(orchestrator, request))
        texts = []

        async def client() -> None:
            texts.append(text_of(await collect(orchestrator, request)))

        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                for _ in range(4):
                    nursery.start_soon(client)
                await until(lambda: any("a" in record.usage for record in orchestrator.inflight.values()))
                kill(orchestrator.pools[stage].replicas[0].pid)
        assert texts == [expected] * 4


async def test_streaming_input_is_given_again() -> None:
    async with stub_orchestrator() as orchestrator, orchestrator.open(Request(task="stream")) as stream:
        for word in ("one ", "two ", "three"):
            await stream.feed("text", "text", {"text": word})
        with trio.fail_after(20):
            await until(lambda: stream.streamed_input is not None and stream.streamed_input.consumed == 3)
            kill(orchestrator.pools["b"].replicas[0].pid)
            await until(lambda: stream.crash_history is not None and stream.crash_history.resumes == 1)
            await stream.feed("text", "text", {"text": "."}, end=True)
            events = [event async for event in stream]
        assert text_of(events) == "one two three."


async def test_without_resumes_a_death_is_an_error_at_once() -> None:
    async with stub_orchestrator("limits.max_resumes=0") as orchestrator:
        async with orchestrator.open(stub("tokens", tokens=10**9)) as stream:
            await stream.receive()
            kill(orchestrator.pools["a"].replicas[0].pid)
            with trio.fail_after(5), pytest.raises(OmniError) as died:
                while True:
                    await stream.receive()
        assert (died.value.info.status, died.value.info.code, died.value.info.stage) == (503, "stage_died", "a")


async def test_a_request_between_two_attempts_can_be_cancelled_and_has_a_deadline() -> None:
    async with stub_orchestrator("stages.a.options.load_s=1") as orchestrator:
        async with orchestrator.open(stub("tokens", tokens=10**9)) as left:
            await left.receive()
            async with orchestrator.open(stub("tokens", tokens=10**9, deadline_s=0.5)) as late:
                await late.receive()
                kill(orchestrator.pools["a"].replicas[0].pid)
                with trio.fail_after(5):
                    await until(lambda: orchestrator.recovery.waiting == 2)
                with trio.fail_after(5), pytest.raises(OmniError) as over:
                    while True:
                        await late.receive()
                assert over.value.info.code == "deadline_exceeded"
        assert not orchestrator.recovery.waiting
        assert not orchestrator.inflight


@pytest.mark.deadline(60)
@pytest.mark.parametrize("count", [1, 2])
async def test_one_poisonous_request_among_32_is_the_only_one_that_fails(count: int) -> None:
    async with stub_orchestrator("stages.a.options.step_s=0.01", f"stages.a.replicas={count}") as orchestrator:
        requests = streams(31)
        requests.insert(16, stub("tokens", tokens=TOKENS, crash="a", id="poison"))
        ends = await run_all(orchestrator, requests)
        failed = ends.pop("poison")
        assert isinstance(failed, OmniError)
        assert (failed.info.code, failed.info.stage, failed.info.status) == ("poison", "a", 500)
        assert ends == {f"r{i}": "x" * TOKENS for i in range(31)}
        assert text_of(await collect(orchestrator, stub(text="next"))) == "next"
        assert not any(replica.quarantined for replica in replicas(orchestrator))
        await idle(orchestrator)


async def test_one_that_is_alone_twice_is_poison() -> None:
    async with stub_orchestrator() as orchestrator:
        with pytest.raises(OmniError) as failed:
            await collect(orchestrator, stub(text="x", crash="b"))
        assert failed.value.info.code == "poison"
        assert orchestrator.pools["b"].replicas[0].incarnation == 3 or await _third_life(orchestrator)


async def _third_life(orchestrator: Orchestrator) -> bool:
    with trio.fail_after(10):
        await until(lambda: orchestrator.pools["b"].replicas[0].incarnation == 3)
    return True
