"""Waiting to be admitted, with real workers: the deadline that is kept on the way, and who is let in when."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from omni_actors.orchestrator import Orchestrator
from omni_actors.protocol.codec import down_reader
from omni_actors.protocol.errors import OmniError
from omni_actors.protocol.frames import Submit
from omni_actors.stages.replica import StageReplica

from .spine import collect, replicas, stub, stub_orchestrator, text_of, until


def submits(orchestrator: Orchestrator) -> list[tuple[str, Submit]]:
    """Every Submit that is sent from now on, with its stage."""
    sent: list[tuple[str, Submit]] = []

    def watch(replica: StageReplica) -> None:
        send = replica.submit

        def submit(key: int, listener: Any, data: bytes, *, later: bool) -> None:
            sent.extend((replica.stage.name, it) for it in down_reader().feed(data) if isinstance(it, Submit))
            send(key, listener, data, later=later)

        replica.submit = submit  # type: ignore[method-assign]

    for replica in replicas(orchestrator):
        watch(replica)
    return sent


async def test_every_stage_is_told_what_is_left_of_the_time_after_the_wait() -> None:
    async with stub_orchestrator("limits.max_inflight=1") as orchestrator:
        sent = submits(orchestrator)
        async with trio.open_nursery() as nursery:
            async with orchestrator.open(stub(stall="a")):
                nursery.start_soon(collect, orchestrator, stub(text="x", deadline_s=5.0))
                await until(lambda: sum(orchestrator.load().waiting.values()) == 1)
                await trio.sleep(0.3)
        budgets = {stage: submit.deadline_s for stage, submit in sent[3:]}
        assert set(budgets) == {"a", "b", "c"}
        for budget in budgets.values():
            assert budget is not None
            assert 3.0 < budget <= 4.7


async def test_the_time_in_line_counts_towards_the_deadline() -> None:
    async with stub_orchestrator("limits.max_inflight=1") as orchestrator:
        async with orchestrator.open(stub(stall="a")):
            begun = trio.current_time()
            with pytest.raises(OmniError) as late:
                await collect(orchestrator, stub(text="x", deadline_s=0.2))
            assert late.value.info.status == 408
            assert trio.current_time() - begun < 2.0
            assert orchestrator.requests.admitted == 1

    async with stub_orchestrator("limits.max_inflight=1") as orchestrator, trio.open_nursery() as nursery:

        async def hold() -> None:
            with trio.move_on_after(0.8):
                await collect(orchestrator, stub(stall="b"))

        nursery.start_soon(hold)
        await until(lambda: len(orchestrator.inflight) == 1)
        begun = trio.current_time()
        with pytest.raises(OmniError) as late:
            await collect(orchestrator, stub(stall="c", deadline_s=1.2))
        assert late.value.info.status == 408
        assert orchestrator.requests.admitted == 2
        assert 1.1 < trio.current_time() - begun < 1.9  # the wait and the rest together


async def test_more_than_fits_is_answered_in_the_end() -> None:
    settings = ("stages.b.limits.max_inflight=3", "stages.c.limits.max_inflight=2", "stages.b.options.step_s=0.002")
    async with stub_orchestrator(*settings) as orchestrator:
        answers: dict[int, str] = {}
        most: dict[str, int] = {}

        async def ask(i: int) -> None:
            async with orchestrator.open(stub(text=str(i), deadline_s=20)) as stream:
                # One that has left c may still be in b, whose word of it is on its way.
                for stage, inside in orchestrator.load().stages.items():
                    most[stage] = max(most.get(stage, 0), inside)
                answers[i] = text_of([event async for event in stream])

        async with trio.open_nursery() as nursery:
            for i in range(60):
                nursery.start_soon(ask, i)
        assert answers == {i: str(i) for i in range(60)}
        assert most["c"] == 2
        assert most["b"] <= 3


async def test_those_in_line_are_told_when_the_server_drains_and_those_inside_finish() -> None:
    async with stub_orchestrator("limits.max_inflight=1", "stages.a.options.step_s=0.02") as orchestrator:
        outcomes: dict[str, Any] = {}

        async def ask(name: str) -> None:
            try:
                outcomes[name] = text_of(await collect(orchestrator, stub("tokens", tokens=20)))
            except OmniError as error:
                outcomes[name] = error.info.code

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, "inside")
            await until(lambda: len(orchestrator.inflight) == 1)
            nursery.start_soon(ask, "in line")
            await until(lambda: sum(orchestrator.load().waiting.values()) == 1)
            await orchestrator.drain(10)
        assert outcomes == {"inside": "x" * 20, "in line": "draining"}


async def test_those_in_line_for_a_stage_that_dies_are_refused_at_once() -> None:
    settings = ("limits.max_resumes=0", "stages.c.limits.max_inflight=1", "limits.restart_delay_s=0.5")
    async with stub_orchestrator(*settings) as orchestrator:
        codes: list[str | None] = []

        async def ask() -> None:
            with pytest.raises(OmniError) as error:
                await collect(orchestrator, stub(stall="c"))
            codes.append(error.value.info.code)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await until(lambda: len(orchestrator.inflight) == 1)
            nursery.start_soon(ask)
            await until(lambda: sum(orchestrator.load().waiting.values()) == 1)
            orchestrator.pools["c"].replicas[0].kill()
        assert sorted(map(str, codes)) == ["stage_died", "stage_unavailable"]
        await until(lambda: orchestrator.ready)
        assert text_of(await collect(orchestrator, stub(text="x"))) == "x"
