"""Replicas by command: drained, replaced, killed, restarted one after the other under load; and what is remembered."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from tests.orchestrator.spine import collect, stub, stub_orchestrator, text_of, until

from omni_actors.orchestrator import Orchestrator, open_orchestrator
from omni_actors.pipelines.factory import resolve
from omni_actors.protocol.errors import OmniError
from omni_actors.stages.control import ReplicaStatus
from omni_actors.stages.replica import StageReplica

TWO = "stages.b.replicas=2"


def status_of(orchestrator: Orchestrator, stage: str, index: int = 0) -> ReplicaStatus:
    return next(it for it in orchestrator.control.status() if (it.stage, it.index) == (stage, index))


@asynccontextmanager
async def held(orchestrator: Orchestrator, stage: str = "b") -> AsyncIterator[StageReplica]:
    """A request that stays in a stage until the block is left; the replica that has it."""
    async with orchestrator.open(stub(stall=stage)):
        (replica,) = (it for it in orchestrator.pools[stage].replicas if it.requests)
        yield replica


async def test_status_says_what_a_replica_is_at() -> None:
    async with stub_orchestrator(TWO) as orchestrator:
        async with held(orchestrator) as replica:
            it = status_of(orchestrator, "b", replica.index)
            assert (it.state, it.requests, it.served, it.restarts, it.next_s) == ("ready", 1, 1, 0, None)
            assert (it.pid, it.ranks) == (replica.pid, (replica.pid,))
            for said in ("1,2", [], [1, 2], [it.pid, "2"]):  # as no worker says it of this life
                replica.info["ranks"] = said
                assert replica.ranks == (it.pid,)
            replica.info["ranks"] = [it.pid, 2]
            assert status_of(orchestrator, "b", replica.index).ranks == (it.pid, 2)
            assert it.uptime_s is not None
            assert it.links == {"a": 1, "c": 1}
        assert [(it.stage, it.index) for it in orchestrator.control.status()] == [
            ("a", 0),
            ("b", 0),
            ("b", 1),
            ("c", 0),
        ]


async def test_a_drained_replica_keeps_what_it_has_and_gets_nothing_new() -> None:
    async with stub_orchestrator(TWO) as orchestrator:
        async with held(orchestrator) as replica:
            assert orchestrator.control.drain("b", replica.index).state == "draining"
            for number in range(4):
                assert text_of(await collect(orchestrator, stub(text=str(number)))) == str(number)
            assert replica.history.served == 1
            assert orchestrator.health()["b"].live == 1
        await until(lambda: status_of(orchestrator, "b", replica.index).state == "drained")
        assert orchestrator.control.undrain("b", replica.index).state == "ready"
        assert orchestrator.health()["b"].live == 2


async def test_a_drained_replica_stays_so_over_a_death() -> None:
    async with stub_orchestrator(TWO) as orchestrator:
        replica = orchestrator.pools["b"].replicas[0]
        orchestrator.control.drain("b", 0)
        orchestrator.control.kill("b", 0)
        await until(lambda: replica.live and replica.incarnation == 2)
        assert status_of(orchestrator, "b").state == "drained"
        orchestrator.control.undrain("b", 0)
        assert status_of(orchestrator, "b").last_end is not None


async def test_a_replica_is_replaced_when_it_is_empty_without_a_pause_or_a_failure() -> None:
    async with stub_orchestrator(TWO, "limits.restart_delay_s=8") as orchestrator:
        pool = orchestrator.pools["b"]
        async with trio.open_nursery() as nursery:
            async with held(orchestrator) as replica:
                before = replica.pid
                nursery.start_soon(orchestrator.control.replace, "b", replica.index)
                await trio.testing.wait_all_tasks_blocked(0.05)
                assert (replica.pid, pool.replacing, replica.accepts_requests) == (before, True, False)
                with pytest.raises(OmniError) as busy:
                    await orchestrator.control.replace("b", replica.index)
                assert busy.value.info.status == 409
            with trio.fail_after(5):  # it waits for no backoff
                await until(lambda: replica.incarnation == 2 and replica.live)
        it = status_of(orchestrator, "b", replica.index)
        assert (it.state, it.failures, it.restarts) == ("ready", 0, 1)
        assert it.pid != before
        assert it.last_end is not None
        assert (it.last_end.cause, it.last_end.served) == ("replaced", 1)
        assert not pool.replacing


async def test_what_is_left_after_the_grace_goes_on_in_the_new_worker() -> None:
    async with stub_orchestrator("stages.a.options.step_s=0.01") as orchestrator:
        texts: list[str] = []

        async def stream() -> None:
            texts.append(text_of(await collect(orchestrator, stub("tokens", tokens=300))))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream)
            a = orchestrator.pools["a"].replicas[0]
            await until(lambda: bool(a.requests))
            await orchestrator.control.replace("a", 0, grace_s=0.2)
            assert a.incarnation == 2
        assert texts == ["x" * 300]


async def test_a_replacement_that_is_called_off_while_it_waits_changes_nothing() -> None:
    async with stub_orchestrator() as orchestrator, held(orchestrator) as replica:
        with trio.move_on_after(0.2):
            await orchestrator.control.replace("b", 0)
        assert (replica.incarnation, replica.accepts_requests, orchestrator.pools["b"].replacing) == (1, True, False)


async def test_requests_wait_for_the_new_worker_also_when_who_gave_the_command_has_left() -> None:
    async with stub_orchestrator("stages.b.options.load_s=0.5") as orchestrator:
        b, pool = orchestrator.pools["b"].replicas[0], orchestrator.pools["b"]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(orchestrator.control.replace, "b", 0)
            await until(lambda: not b.live)
            nursery.cancel_scope.cancel()
        assert pool.replacing
        assert text_of(await collect(orchestrator, stub(text="waited"))) == "waited"
        assert (b.incarnation, pool.replacing) == (2, False)


async def test_a_new_worker_that_does_not_start_is_said_and_the_rest_is_left_alone() -> None:
    """Stages behind the one that failed keep the workers that serve."""
    async with stub_orchestrator("stages.a.start_timeout_s=5", "limits.restart_delay_s=5") as orchestrator:
        a, b = (orchestrator.pools[name].replicas[0] for name in "ab")

        async def spoil() -> None:
            await until(lambda: a.incarnation == 2 and a.pid is not None)
            assert a.pid is not None
            os.kill(a.pid, signal.SIGKILL)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(spoil)
            with pytest.raises(OmniError) as failed:
                await orchestrator.control.restart()
        info = failed.value.info
        assert (info.status, info.code, info.stage) == (503, "replacement_failed", "a")
        assert info.retry_after is not None
        assert info.retry_after > 3  # the pause before the next start is in it
        assert b.incarnation == 1
        health = orchestrator.health()["a"]
        assert (health.live, health.replacing) == (0, False)
        assert health.next_s is not None
        assert health.next_s > 3
        assert health.last_exit is not None
        assert health.last_exit.cause == "start"


async def test_a_start_without_a_free_descriptor_is_a_failed_start(monkeypatch: pytest.MonkeyPatch) -> None:
    async with stub_orchestrator("limits.restart_delay_s=0.2") as orchestrator:
        b = orchestrator.pools["b"].replicas[0]
        with monkeypatch.context() as patched:
            patched.setattr("os.memfd_create", lambda *_: os.open("/nowhere/at/all", 0))
            orchestrator.control.kill("b", 0)
            await until(lambda: b.history.exits["start"] > 0)
        await until(lambda: b.live)


async def test_a_refusal_tells_when_the_stage_is_likely_to_be_back() -> None:
    overrides = ["limits.restart_delay_s=6", "limits.restart_delay_max_s=6", "limits.max_resumes=0"]
    async with open_orchestrator(resolve("stub", overrides=overrides)) as orchestrator:
        await orchestrator.wait_ready()
        orchestrator.control.kill("b", 0)
        await until(lambda: not orchestrator.pools["b"].replicas[0].live)
        await trio.testing.wait_all_tasks_blocked(0.1)
        with pytest.raises(OmniError) as refused:
            await collect(orchestrator, stub(text="x"))
        info = refused.value.info
        assert (info.code, info.stage) == ("stage_unavailable", "b")
        assert info.retry_after is not None
        start_s = orchestrator.pools["b"].replicas[0].history.start_s
        assert start_s is not None
        assert 4 < info.retry_after <= 6 + start_s
        assert text_of(await collect(orchestrator, stub("tokens", tokens=3))) == "xxx"  # which needs no b


@pytest.mark.parametrize(("stage", "index"), [("x", 0), ("b", 1), ("b", -1)])
async def test_who_is_not_there_is_404(stage: str, index: int) -> None:
    async with stub_orchestrator() as orchestrator:
        with pytest.raises(OmniError) as failed:
            orchestrator.control.drain(stage, index)
        assert failed.value.info.status == 404


@pytest.mark.slow
@pytest.mark.deadline(90)
@pytest.mark.parametrize("replicas", [1, 2])
async def test_every_stage_restarts_under_constant_load_without_a_failed_request(replicas: int) -> None:
    """Single replicas too: new requests wait for the new worker, those in the old one finish or go on behind it."""
    overrides = [f"stages.{name}.replicas={replicas}" for name in "abc"]
    async with stub_orchestrator(*overrides, "stages.a.options.step_s=0.002") as orchestrator:
        done, failed, over = 0, [], False

        async def client(number: int) -> None:
            nonlocal done
            while not over:
                try:
                    if number % 2:
                        assert text_of(await collect(orchestrator, stub(text="x" * 50, pieces=20, bytes=20_000)))
                    else:
                        assert text_of(await collect(orchestrator, stub("tokens", tokens=50))) == "x" * 50
                    done += 1
                except OmniError as error:
                    failed.append(error.info)
                    await trio.sleep(0.1)

        async with trio.open_nursery() as nursery:
            for number in range(16):
                nursery.start_soon(client, number)
            await until(lambda: done > 16)
            await orchestrator.control.restart(grace_s=5)
            before = done
            await until(lambda: done > before + 16)
            over = True
        assert failed == []
        assert all(it.incarnation == 2 for it in orchestrator.control.status())
