"""Requests through three real worker processes: results, failures, cancellation, and nothing left behind."""

from __future__ import annotations

import pytest
import trio

from omni_actors.protocol.errors import OmniError
from omni_actors.protocol.frames import INLINE_LIMIT
from omni_actors.protocol.params import Sampling
from omni_actors.protocol.request import Completed, Request, TextDelta

from .spine import NO_RESUMES, checksum, collect, idle, kill, replicas, stub, stub_orchestrator, text_of, until


async def test_a_request_passes_every_stage_and_completes_once() -> None:
    async with stub_orchestrator() as orchestrator:
        events = await collect(orchestrator, stub(text="hello"))
        assert text_of(events) == "hello"
        last = events[-1]
        assert isinstance(last, Completed)
        assert set(last.usage) == {"a", "b", "c"}


async def test_concurrent_requests_get_their_own_results() -> None:
    async with stub_orchestrator() as orchestrator:
        results: dict[int, str] = {}

        async def one(i: int) -> None:
            results[i] = text_of(await collect(orchestrator, stub(text=f"request {i}", bytes=i * 1000)))

        async with trio.open_nursery() as nursery:
            for i in range(100):
                nursery.start_soon(one, i)
        assert results == {i: f"request {i}" + (f" {checksum(i * 1000)}" if i else "") for i in range(100)}


@pytest.mark.parametrize("size", [1, 4096, INLINE_LIMIT, INLINE_LIMIT + 1, 1 << 20, (5 << 20) + 7])
async def test_tensors_arrive_bit_for_bit_inline_and_in_slabs(size: int) -> None:
    async with stub_orchestrator() as orchestrator:
        for place in (False, True, False):  # all in one slot
            request = stub(text="", bytes=size, place=place)
            assert text_of(await collect(orchestrator, request)) == f" {checksum(size)}"


async def test_a_budget_smaller_than_one_payload_still_serves_every_request() -> None:
    async with stub_orchestrator("stages.a.limits.arena_bytes=1048576") as orchestrator:
        results: list[str] = []

        async def one() -> None:
            results.append(text_of(await collect(orchestrator, stub(text="", bytes=3 << 20, pieces=5))))

        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(one)
        # Stage b hands on one piece of its own, so c sees that.
        assert results == [f" {checksum(3 << 20)}"] * 8


@pytest.mark.parametrize("mode", ["chunk", "full"])
async def test_more_pieces_than_credits_all_arrive_in_order(mode: str) -> None:
    async with stub_orchestrator("edges.b.text.capacity=4", f"edges.b.text.mode={mode}") as orchestrator:
        assert text_of(await collect(orchestrator, stub(text="ab", pieces=300))) == "ab" * 300


async def test_streaming_input_joins_one_request() -> None:
    async with stub_orchestrator() as orchestrator, orchestrator.open(stub("stream")) as stream:
        for i in range(200):
            await stream.feed("text", "text", {"text": f"{i} "})
        await stream.feed("text", "text", None, end=True)
        assert text_of([event async for event in stream]) == "".join(f"{i} " for i in range(200))


async def test_a_stage_streams_to_the_client_and_downstream_stages_see_nothing() -> None:
    async with stub_orchestrator() as orchestrator:
        events = await collect(orchestrator, stub("tokens", tokens=50))
        deltas = [event for event in events if type(event) is TextDelta]
        assert len(deltas) == 50
        assert [delta.finish_reason for delta in deltas] == [None] * 49 + ["stop"]
        counters = await orchestrator.counters()
        assert counters["b"][0]["steps_total"] == counters["c"][0]["steps_total"] == 0


@pytest.mark.parametrize("stage", ["a", "b", "c"])
async def test_a_refusal_and_a_failure_end_the_request_with_a_typed_error(stage: str) -> None:
    async with stub_orchestrator() as orchestrator:
        with pytest.raises(OmniError) as refused:
            await collect(orchestrator, stub(text="x", refuse=stage))
        assert (refused.value.info.status, refused.value.info.param) == (400, "stub")
        with pytest.raises(OmniError) as failed:
            await collect(orchestrator, stub(text="x", fail=stage))
        assert (failed.value.info.status, failed.value.info.stage) == (500, stage)
        await idle(orchestrator)
        assert text_of(await collect(orchestrator, stub(text="next"))) == "next"


async def test_unknown_task_and_modality_are_the_clients_mistake() -> None:
    async with stub_orchestrator() as orchestrator:
        with pytest.raises(OmniError) as unknown:
            await collect(orchestrator, Request(task="paint"))
        assert unknown.value.info.status == 400
        with pytest.raises(OmniError) as modality:
            await collect(orchestrator, Request(task="echo", outputs=("video",)))
        assert (modality.value.info.status, modality.value.info.param) == (400, "modalities")


async def test_what_no_stage_reads_is_the_clients_mistake() -> None:
    """Where it would be dropped; a section that says nothing may be there."""
    async with stub_orchestrator() as orchestrator:
        asked = stub(text="x")
        asked.params["sampling"] = Sampling(n=2)
        with pytest.raises(OmniError) as unread:
            await collect(orchestrator, asked)
        assert (unread.value.info.status, unread.value.info.param) == (400, "n")
        asked.params["sampling"] = Sampling()
        assert text_of(await collect(orchestrator, asked)) == "x"
        await idle(orchestrator)


async def test_leaving_the_block_cancels_the_work_in_every_worker() -> None:
    async with stub_orchestrator() as orchestrator:
        async with orchestrator.open(stub("tokens", tokens=10**9)) as stream:
            await stream.receive()
        with trio.move_on_after(0.05):
            await collect(orchestrator, stub(text="x", stall="c"))
        with trio.fail_after(5):
            await idle(orchestrator)


async def test_a_deadline_ends_the_request_with_408() -> None:
    async with stub_orchestrator() as orchestrator:
        with trio.fail_after(5), pytest.raises(OmniError) as late:
            await collect(orchestrator, stub(text="x", stall="b", deadline_s=0.2))
        assert late.value.info.status == 408
        with trio.fail_after(5):
            await idle(orchestrator)


async def test_a_client_that_does_not_read_is_cut_off_and_others_go_on() -> None:
    async with stub_orchestrator("limits.sink_bytes=65536") as orchestrator:
        async with orchestrator.open(stub("tokens", tokens=10**9)) as slow:
            await until(lambda: not slow.state.live)
            assert text_of(await collect(orchestrator, stub(text="fast"))) == "fast"
            with pytest.raises(OmniError) as cut:
                while True:
                    await slow.receive()
            assert cut.value.info.code == "slow_client"


async def test_over_the_bound_requests_are_refused_with_429() -> None:
    async with stub_orchestrator("limits.max_inflight=2", "limits.max_queued=0") as orchestrator:
        async with orchestrator.open(stub(stall="a")), orchestrator.open(stub(stall="a")):
            with pytest.raises(OmniError) as full:
                await collect(orchestrator, stub(text="x"))
            assert full.value.info.status == 429
            assert full.value.info.retry_after
        with trio.fail_after(5):
            await idle(orchestrator)
        assert text_of(await collect(orchestrator, stub(text="x"))) == "x"


@pytest.mark.parametrize("stage", ["a", "b", "c"])
async def test_killing_a_worker_fails_its_requests_alone_and_it_comes_back(stage: str) -> None:
    async with stub_orchestrator(NO_RESUMES) as orchestrator:
        victim = orchestrator.pools[stage].replicas[0]
        errors: list[OmniError] = []

        async def caught() -> None:
            try:
                await collect(orchestrator, stub(text="x", stall=stage))
            except OmniError as error:
                errors.append(error)

        # A request that streams from stage a does not pass b or c: it must live through their deaths.
        survives = stage != "a"
        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(caught)
            await until(lambda: len(victim.requests) == 4)
            async with orchestrator.open(stub("tokens", tokens=10**9)) as other:
                await other.receive()
                kill(victim.pid)
                with trio.fail_after(5):
                    await until(lambda: len(errors) == 4)
                assert {(e.info.status, e.info.code, e.info.stage) for e in errors} == {(503, "stage_died", stage)}
                if survives:
                    for _ in range(100):
                        await other.receive()
                else:
                    with pytest.raises(OmniError):
                        while True:
                            await other.receive()
                with pytest.raises(OmniError) as unavailable:
                    await collect(orchestrator, stub(text="too early"))
                assert unavailable.value.info.code == "stage_unavailable"
                assert not orchestrator.ready
        with trio.fail_after(10):
            await until(lambda: orchestrator.ready)
        assert victim.incarnation == 2
        assert text_of(await collect(orchestrator, stub(text="back", bytes=1 << 20))) == f"back {checksum(1 << 20)}"


@pytest.mark.parametrize("stage", ["a", "b", "c"])
async def test_a_request_that_kills_its_worker_fails_itself(stage: str) -> None:
    async with stub_orchestrator(NO_RESUMES) as orchestrator:
        with trio.fail_after(5), pytest.raises(OmniError) as died:
            await collect(orchestrator, stub(text="x", crash=stage))
        assert died.value.info.stage == stage
        with trio.fail_after(10):
            await until(lambda: orchestrator.ready)
        assert text_of(await collect(orchestrator, stub(text="next"))) == "next"


async def test_one_dead_replica_of_two_leaves_the_stage_in_service() -> None:
    async with stub_orchestrator("stages.b.replicas=2") as orchestrator:
        victim = orchestrator.pools["b"].replicas[0]
        kill(victim.pid)
        await until(lambda: not victim.live)
        assert orchestrator.ready
        for i in range(20):
            assert text_of(await collect(orchestrator, stub(text=str(i)))) == str(i)
        with trio.fail_after(10):
            await until(lambda: victim.live)
        for i in range(20):  # its links are new; both replicas serve
            assert text_of(await collect(orchestrator, stub(text=str(i), bytes=100_000))) == f"{i} {checksum(100_000)}"


@pytest.mark.parametrize("balancer", ["round_robin", "least_queue"])
async def test_replicas_share_the_requests(balancer: str) -> None:
    async with stub_orchestrator("stages.b.replicas=2", f"stages.b.balancer={balancer}") as orchestrator:
        async with trio.open_nursery() as nursery:
            for i in range(40):
                nursery.start_soon(collect, orchestrator, stub(text=str(i)))
        counters = await orchestrator.counters()
        assert all(replica["steps_total"] > 0 for replica in counters["b"])


async def test_affinity_keeps_requests_on_one_replica() -> None:
    async with stub_orchestrator("stages.b.replicas=2", "stages.b.balancer=round_robin") as orchestrator:
        request = Request(task="echo", params={"stub": {"text": "x"}}, affinity="somebody")
        for _ in range(10):
            assert text_of(await collect(orchestrator, request)) == "x"
        steps = [replica["steps_total"] for replica in (await orchestrator.counters())["b"]]
        assert sorted(steps) == [0, 10]


async def test_equal_request_ids_do_not_meet() -> None:
    async with stub_orchestrator() as orchestrator:
        results: list[str] = []

        async def one(text: str) -> None:
            results.append(text_of(await collect(orchestrator, stub(text=text, id="same"))))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(one, "1")
            nursery.start_soon(one, "2")
        assert sorted(results) == ["1", "2"]


async def test_draining_refuses_new_requests_and_finishes_old_ones() -> None:
    async with stub_orchestrator("stages.a.options.step_s=0.05") as orchestrator:
        results: list[str] = []

        async def old() -> None:
            results.append(text_of(await collect(orchestrator, stub(text="old"))))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(old)
            await until(lambda: bool(orchestrator.inflight))
            await orchestrator.drain(5.0)
            with pytest.raises(OmniError) as refused:
                await collect(orchestrator, stub(text="new"))
            assert refused.value.info.code == "draining"
        assert results == ["old"]


async def test_random_aborts_leave_nothing() -> None:
    async with stub_orchestrator() as orchestrator:

        async def one(i: int) -> None:
            with trio.move_on_after(i % 7 * 0.001):
                await collect(orchestrator, stub(text="x", pieces=5, bytes=(i % 3) * 100_000))

        async with trio.open_nursery() as nursery:
            for i in range(300):
                nursery.start_soon(one, i)
        with trio.fail_after(10):
            await idle(orchestrator)
        assert all(replica.incarnation == 1 for replica in replicas(orchestrator))
