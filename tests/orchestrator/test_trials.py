"""Trials of suspects, while other things happen: replacements, the end of the server."""

from __future__ import annotations

import contextlib
from functools import partial

import pytest
import trio

from omni_actors.orchestrator import Orchestrator, RequestStream, open_orchestrator
from omni_actors.orchestrator.streamed_input import StreamedInput
from omni_actors.pipelines.factory import resolve
from omni_actors.protocol.errors import OmniError, link_lost, stage_died
from omni_actors.protocol.request import TextDelta
from omni_actors.stages.replica import StageReplica

from .spine import collect, kill, stub, stub_orchestrator, text_of, until

PACED = "stages.a.options.step_s=0.01"


async def suspects(orchestrator: Orchestrator, streams: list[RequestStream]) -> None:
    """Kill the worker of stage a twice with these in it."""
    replica = orchestrator.pools["a"].replicas[0]
    for _ in range(2):
        await until(lambda: replica.live and len(replica.requests) >= len(streams))
        kill(replica.pid)
        await until(lambda: not replica.live)


async def test_a_replica_that_is_replaced_during_a_trial_takes_it_up_again() -> None:
    async with stub_orchestrator() as orchestrator:
        replica = orchestrator.pools["a"].replicas[0]
        silent = stub("tokens", stall="a")
        with trio.fail_after(20):
            async with orchestrator.open(silent) as one, orchestrator.open(silent) as two:
                await suspects(orchestrator, [one, two])
                await until(lambda: list(replica.requests.values()) == [one])
                await orchestrator.control.replace("a", 0, 0.0)
                await until(lambda: list(replica.requests.values()) == [one])
            await until(lambda: not replica.quarantined)
            assert text_of(await collect(orchestrator, stub(text="next"))) == "next"
        assert replica.incarnation == 4


@pytest.mark.parametrize("meanwhile", ["a link breaks", "a replacement"])
async def test_who_was_cleared_is_not_tried_for_what_is_no_death(meanwhile: str) -> None:
    async with stub_orchestrator(PACED) as orchestrator:
        replica = orchestrator.pools["a"].replicas[0]
        texts: list[str] = []

        async def client(stream: RequestStream) -> None:
            async with stream:
                texts.append(text_of([event async for event in stream]))

        streams = [orchestrator.open(stub("tokens", tokens=300)) for _ in range(2)]
        with trio.fail_after(25):
            async with trio.open_nursery() as nursery:
                for stream in streams:
                    nursery.start_soon(client, stream)
                await suspects(orchestrator, streams)
                await until(lambda: replica.live and len(replica.requests) == 2 and not replica.quarantined)
                if meanwhile == "a link breaks":
                    for stream in streams:
                        stream.on_failed(replica, stream.key, link_lost("a").info)
                    assert not orchestrator.recovery.waiting
                else:
                    await orchestrator.control.replace("a", 0, 0.0)
                    assert len(replica.requests) == 2
                assert not replica.quarantined
        assert texts == ["x" * 300] * 2


@pytest.mark.deadline(60)
async def test_one_that_kills_late_is_found_by_halves() -> None:
    """It ends each worker after it was cleared there. Nobody is tried alone for a whole life on its account."""
    settings = ("stages.a.options.step_s=0.005", "limits.restart_delay_s=0.01", "limits.restart_delay_max_s=0.01")
    async with stub_orchestrator(*settings) as orchestrator:
        replica = orchestrator.pools["a"].replicas[0]
        texts: list[str] = []

        async def client(stream: RequestStream) -> None:
            async with stream:
                texts.append(text_of([event async for event in stream]))

        culprit = orchestrator.open(stub("tokens", tokens=10**9))
        streams = [orchestrator.open(stub("tokens", tokens=300)) for _ in range(3)]
        with trio.fail_after(50):
            async with trio.open_nursery() as nursery, culprit:
                for stream in streams:
                    nursery.start_soon(client, stream)
                await suspects(orchestrator, [culprit, *streams])
                for together in (4, 2, 1):
                    await until(lambda there=together: _cleared(culprit, replica, there))  # type: ignore[misc]
                    kill(replica.pid)
                    await until(lambda: not replica.live)
                with pytest.raises(OmniError) as failed:
                    while True:
                        await culprit.receive()
                assert failed.value.info.code == "poison"
        assert texts == ["x" * 300] * 3
        assert not replica.quarantined


async def test_those_behind_in_a_trial_wait_for_their_turn() -> None:
    """Each needs half a second to be cleared, and all of them more than a request waits for a replica that is gone."""
    async with stub_orchestrator(PACED, "limits.resume_wait_s=1.5", "limits.restart_delay_s=0.01") as orchestrator:
        told = [0] * 6

        async def client(place: int, stream: RequestStream) -> None:
            async with stream:
                async for event in stream:
                    told[place] += type(event) is TextDelta

        streams = [orchestrator.open(stub("tokens", tokens=60)) for _ in told]
        with trio.fail_after(25):
            async with trio.open_nursery() as nursery:
                for place, stream in enumerate(streams):
                    nursery.start_soon(client, place, stream)
                await until(lambda: min(told) >= 50)
                await suspects(orchestrator, streams)
        assert told == [60] * 6


@pytest.mark.deadline(40)
async def test_a_trial_by_halves_lasts_as_long_as_those_who_were_let_in() -> None:
    """Also when the last one who waits leaves, when the worker is replaced by command, and when one of them cannot go
    on after the next death."""
    settings = ("limits.max_resumes=2", "limits.restart_delay_s=0.01", "limits.restart_delay_max_s=0.01")
    async with stub_orchestrator(PACED, *settings) as orchestrator:
        replica = orchestrator.pools["a"].replicas[0]
        async with contextlib.AsyncExitStack() as stack:
            with trio.fail_after(30):
                streams = [orchestrator.open(stub("tokens", tokens=10**9)) for _ in range(3)]
                streams.append(orchestrator.open(stub("tokens", stall="a")))
                for stream in streams:
                    await stack.enter_async_context(stream)
                waits, second, first, silent = streams
                await suspects(orchestrator, streams)
                await until(lambda: len(replica.requests) == 4)
                kill(replica.pid)
                await until(lambda: list(replica.requests.values()) == [silent])
                silent.fail(stage_died("a").info)
                await until(lambda: _cleared(second, replica, 2))
                assert list(replica.requests.values()) == [first, second]
                waits.fail(stage_died("a").info)
                assert replica.quarantined

                await orchestrator.control.replace("a", 0, 0.0)
                assert list(replica.requests.values()) == [first, second]
                assert replica.quarantined

                first.streamed_input = StreamedInput(lost_for="a")
                kill(replica.pid)
                await until(lambda: not first.state.live)
                await until(lambda: list(replica.requests.values()) == [second])
                assert replica.quarantined
                assert second.crash_history is not None
                assert second.crash_history.resumes == 2
        await until(lambda: not replica.quarantined)


async def test_who_was_cleared_stays_while_others_are_tried() -> None:
    async with stub_orchestrator(PACED) as orchestrator:
        replica = orchestrator.pools["a"].replicas[0]
        with trio.fail_after(20):
            async with (
                orchestrator.open(stub("tokens", tokens=10**9)) as cleared,
                orchestrator.open(stub("tokens", stall="a")) as silent,
            ):
                await suspects(orchestrator, [cleared, silent])
                await until(lambda: len(replica.requests) == 2)
                assert replica.quarantined
                before = cleared.key
                cleared.on_failed(replica, before, link_lost("a").info)
                assert cleared.key > before
                assert not orchestrator.recovery.waiting
                with pytest.raises(OmniError, match="before its deadline"):
                    await orchestrator.open(stub("tokens", tokens=1, deadline_s=0.1)).__aenter__()
        await until(lambda: not replica.quarantined)


def _cleared(record: RequestStream, replica: StageReplica, there: int) -> bool:
    """Whether it has got on since the last death, with so many in the worker by now."""
    assert len(replica.requests) <= there
    assert record.crash_history is not None
    return (
        len(replica.requests) == there
        and record in replica.requests.values()
        and not record.crash_history.awaited_since
    )


def _dead(replica: StageReplica) -> bool:
    return not replica.live


def _runs(record: RequestStream) -> bool:
    return record.state.live and record.key >= 0


async def test_trials_of_two_stages_do_not_wait_for_each_other() -> None:
    """Each one's suspects need the other's replica."""
    async with stub_orchestrator("limits.restart_delay_s=0.01") as orchestrator, contextlib.AsyncExitStack() as stack:
        a, b = (orchestrator.pools[name].replicas[0] for name in "ab")
        with trio.fail_after(25):
            of_a = [await stack.enter_async_context(orchestrator.open(stub(stall="a"))) for _ in range(2)]
            of_b = [await stack.enter_async_context(orchestrator.open(stub(stall="b"))) for _ in range(2)]
            for _ in range(2):
                await until(lambda: all("a" in it.usage for it in of_b) and all(it.key >= 0 for it in of_a))
                for replica in (a, b):
                    kill(replica.pid)
                    await until(partial(_dead, replica))
            casualties = [it.crash_history for it in of_a + of_b if it.crash_history is not None]
            assert [dict(it.crashes) for it in casualties] == [{"a": 2}] * 2 + [{"b": 2}] * 2
            for record in of_a + of_b:
                await until(lambda: any(map(_runs, of_a + of_b)))
                assert [it for it in of_a + of_b if _runs(it)] == [record]
                record.fail(stage_died("a").info)
            await until(lambda: not orchestrator.inflight)
        assert not a.quarantined
        assert not b.quarantined


async def test_an_operator_who_kills_a_worker_makes_nobody_a_suspect() -> None:
    async with stub_orchestrator("limits.max_resumes=1", "limits.restart_delay_s=0.01") as orchestrator:
        replica = orchestrator.pools["a"].replicas[0]
        with trio.fail_after(20):
            async with orchestrator.open(stub("tokens", stall="a")) as alone:
                for _ in range(3):
                    orchestrator.control.kill("a", 0)
                    await until(lambda: not replica.live)
                    await until(lambda: bool(replica.requests))
                assert alone.crash_history is not None
                assert not alone.crash_history.resumes
                assert not alone.crash_history.crashes


async def test_with_one_resume_all_that_are_in_a_second_death_fail_and_none_is_tried() -> None:
    async with stub_orchestrator("limits.max_resumes=1", "limits.restart_delay_s=0.01") as orchestrator:
        silent = stub("tokens", stall="a")
        with trio.fail_after(20):
            async with orchestrator.open(silent) as one, orchestrator.open(silent) as two:
                await suspects(orchestrator, [one, two])
                for stream in (one, two):
                    with pytest.raises(OmniError) as failed:
                        await stream.receive()
                    assert (failed.value.info.status, failed.value.info.code) == (503, "stage_died")
                assert not orchestrator.recovery.waiting


async def test_who_kills_a_worker_is_not_told_from_a_request_that_is_alone_in_it() -> None:
    async with stub_orchestrator("limits.restart_delay_s=0.01") as orchestrator:
        with trio.fail_after(20):
            async with orchestrator.open(stub("tokens", stall="a")) as alone:
                await suspects(orchestrator, [alone])
                with pytest.raises(OmniError) as failed:
                    await alone.receive()
                assert failed.value.info.code == "poison"


async def test_requests_that_wait_for_a_replica_end_with_the_deployment() -> None:
    failures: list[OmniError] = []

    async def client(stream: RequestStream, begun: trio.Event) -> None:
        async with stream:
            assert isinstance(await stream.receive(), TextDelta)
            begun.set()
            with pytest.raises(OmniError) as ended:
                while True:
                    await stream.receive()
            failures.append(ended.value)

    async with trio.open_nursery() as nursery:
        async with open_orchestrator(resolve("stub", overrides=(PACED, "limits.restart_delay_s=5"))) as orchestrator:
            with trio.fail_after(20):
                await orchestrator.wait_ready()
                begun = trio.Event()
                nursery.start_soon(client, orchestrator.open(stub("tokens", tokens=10**9)), begun)
                await begun.wait()
                kill(orchestrator.pools["a"].replicas[0].pid)
                await until(lambda: orchestrator.recovery.waiting == 1)
        nursery.cancel_scope.deadline = trio.current_time() + 5
    assert [failure.info.code for failure in failures] == ["draining"]
