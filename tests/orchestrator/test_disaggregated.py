"""Prefill and decode apart, in real processes: the answers of one pool, and what the death of either leaves."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from tests.orchestrator.spine import NO_RESUMES, collect, idle, kill, until
from tests.worker.engines import tiny_models

from omni_actors.orchestrator import Orchestrator, open_orchestrator
from omni_actors.pipelines.factory import resolve
from omni_actors.protocol.errors import OmniError
from omni_actors.protocol.params import Prompt, Sampling
from omni_actors.protocol.request import Completed, Request, TextDelta, Usage
from omni_actors.stages.replica import StageReplica

RNG = random.Random(11)
PROMPTS = [[RNG.randrange(256) for _ in range(RNG.randrange(5, 200))] for _ in range(24)]
GAUGES = (
    "requests",
    "running",
    "waiting",
    "kv_blocks_used",
    "kv_exports",
    "kv_imports",
    "kv_blocks_reserved",
    "swapped",
)
TWO_POOLS = (
    "stages.llm.prefill.replicas=1",
    "stages.llm.prefill.options.block_size=16",
    "stages.llm.options.block_size=5",
    "stages.llm.options.kv_blocks=1700",
    "stages.llm.options.step_tokens=64",
    "stages.llm.options.max_batch=32",
    "limits.restart_delay_s=0.05",
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    # Rows of a long prompt are larger than what travels inside a frame: slabs are in play.
    return tiny_models.save(tmp_path_factory.mktemp("model"), head_dim=64)


@asynccontextmanager
async def serving(model: str, *overrides: str) -> AsyncIterator[Orchestrator]:
    """A ready deployment; at the end no request is in it, and no block, lease or reservation is held."""
    async with open_orchestrator(resolve(model, platform="cpu", overrides=overrides)) as orchestrator:
        with trio.fail_after(60):
            await orchestrator.wait_ready()
        yield orchestrator
        with trio.fail_after(10):
            await idle(orchestrator)
        for stage in (await orchestrator.counters()).values():
            for counters in stage:
                assert {name: counters[name] for name in GAUGES if counters.get(name)} == {}


def asks(prompt: list[int], **sampling: object) -> Request:
    params = Sampling(**({"temperature": 0.0, "max_tokens": 16, "ignore_eos": True} | sampling))  # type: ignore[arg-type]
    return Request(task="completion", params={"prompt": Prompt(token_ids=prompt), "sampling": params})


async def answer(orchestrator: Orchestrator, request: Request) -> tuple[list[int], dict[str, Usage]]:
    events = await collect(orchestrator, request)
    assert type(events[-1]) is Completed
    return [t for e in events if type(e) is TextDelta for t in e.token_ids], events[-1].usage


async def answers(orchestrator: Orchestrator, requests: list[Request], concurrency: int) -> list[list[int] | OmniError]:
    """Tokens, or the error, of each request; so many at a time."""
    found: dict[int, list[int] | OmniError] = {}
    free = trio.CapacityLimiter(concurrency)

    async def one(index: int, request: Request) -> None:
        async with free:
            try:
                found[index], _ = await answer(orchestrator, request)
            except OmniError as error:
                found[index] = error

    async with trio.open_nursery() as nursery:
        for index, request in enumerate(requests):
            nursery.start_soon(one, index, request)
    return [found[index] for index in range(len(requests))]


def pool(orchestrator: Orchestrator, stage: str) -> StageReplica:
    return orchestrator.pools[stage].replicas[0]


@pytest.mark.deadline(120)
async def test_two_pools_answer_as_one_does_and_recompute_nothing(model: str) -> None:
    requests = [asks(prompt, seed=i, temperature=float(i % 2)) for i, prompt in enumerate(PROMPTS)]
    async with serving(model) as one:
        expected = await answers(one, requests, 8)
    async with serving(model, *TWO_POOLS, "stages.llm.prefill.replicas=2", "stages.llm.replicas=2") as two:
        assert await answers(two, requests, 8) == expected
        counters = await two.counters()
        assert [c["recomputed_prompt_tokens_total"] for c in counters["llm"]] == [0, 0]
        assert all(c["kv_imported_tokens_total"] for c in counters["llm"])
        assert all(c["kv_exported_tokens_total"] for c in counters["llm-prefill"])
        assert sum(c["kv_imported_tokens_total"] for c in counters["llm"]) == sum(map(len, PROMPTS))
        assert sum(c["completion_tokens_total"] for c in counters["llm-prefill"]) == 0
        pids = {replica.pid for pool in two.pools.values() for replica in pool.replicas}
        assert len(pids) == 4
        _, usage = await answer(two, asks(PROMPTS[0]))
        assert usage["llm"].prompt_tokens == len(PROMPTS[0])
        assert usage["llm-prefill"] == Usage()
        for wait in (0, 0.001, 0.005, 0.02):  # clients that leave free both pools: that is checked at the end
            async with trio.open_nursery() as nursery:
                for prompt in PROMPTS[:8]:
                    nursery.start_soon(answers, two, [asks(prompt, max_tokens=300)], 1)
                await trio.sleep(wait)
                nursery.cancel_scope.cancel()


@pytest.mark.deadline(240)
@pytest.mark.slow
async def test_a_death_in_mid_transfer_takes_its_requests_alone(model: str) -> None:
    """Either end of a transfer dies while rows are on their way; either of them is held there by a stop. A request that
    is past its transfer lives on when the first pool's worker dies."""
    long = [[*prompt, *PROMPTS[0] * 100][:450] for prompt in PROMPTS[:16]]
    async with serving(model, *TWO_POOLS, NO_RESUMES, "stages.llm.prefill.options.prefix_cache=false") as orchestrator:
        prefill, decode = pool(orchestrator, "llm-prefill"), pool(orchestrator, "llm")
        expected = await answers(orchestrator, [asks(p) for p in long], 8)
        bystander, _ = await answer(orchestrator, asks(PROMPTS[1], max_tokens=300))
        for stopped, victim in ((prefill, prefill), (decode, prefill), (prefill, decode), (decode, decode)):
            apart: list[list[int] | OmniError] = []
            results: list[list[int] | OmniError] = []

            async def past_its_transfer(into: list[list[int] | OmniError] = apart) -> None:
                into.extend(await answers(orchestrator, [asks(PROMPTS[1], max_tokens=300)], 1))

            async def transfers(into: list[list[int] | OmniError] = results) -> None:
                into.extend(await answers(orchestrator, [asks(p) for p in long], 16))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(past_its_transfer)
                with trio.fail_after(10):
                    await until(lambda: any("llm-prefill" in r.usage for r in orchestrator.inflight.values()))
                nursery.start_soon(transfers)
                await in_mid_transfer(prefill, decode, stopped)
                kill(victim.pid)
                if stopped is not victim:
                    await until(lambda it=victim: not it.live)  # type: ignore[misc]
                    assert stopped.pid is not None
                    os.kill(stopped.pid, signal.SIGCONT)
            errors = [it for it in results if isinstance(it, OmniError)]
            assert errors
            assert {error.info.stage for error in errors} == {victim.stage.name}
            assert all(it == want for it, want in zip(results, expected, strict=True) if not isinstance(it, OmniError))
            assert apart == [bystander] if victim is prefill else isinstance(apart[0], OmniError)
            with trio.fail_after(60):
                await until(lambda: orchestrator.ready)
            assert await answers(orchestrator, [asks(p) for p in long], 8) == expected


@pytest.mark.slow
@pytest.mark.deadline(120)
@pytest.mark.parametrize("victim", ["llm-prefill", "llm"])
async def test_with_resumes_a_death_in_mid_transfer_changes_no_answer(model: str, victim: str) -> None:
    long = [[*prompt, *PROMPTS[0] * 100][:450] for prompt in PROMPTS[:16]]
    async with serving(model, *TWO_POOLS, "stages.llm.prefill.options.prefix_cache=false") as orchestrator:
        prefill, decode = pool(orchestrator, "llm-prefill"), pool(orchestrator, "llm")
        expected = await answers(orchestrator, [asks(p) for p in long], 8)
        results: list[list[int] | OmniError] = []

        async def transfers() -> None:
            results.extend(await answers(orchestrator, [asks(p) for p in long], 16))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(transfers)
            await in_mid_transfer(prefill, decode, prefill)
            kill(pool(orchestrator, victim).pid)
            if victim != prefill.stage.name:
                assert prefill.pid is not None
                os.kill(prefill.pid, signal.SIGCONT)
        assert results == expected


async def in_mid_transfer(prefill: StageReplica, decode: StageReplica, stopped: StageReplica) -> None:
    """Stop a worker while the other one holds something of a transfer: a lease that is not given back, or a
    reservation that is filled in part."""
    before = (await prefill.query("counters"))["kv_exported_tokens_total"]
    with trio.fail_after(20):
        while (await prefill.query("counters"))["kv_exported_tokens_total"] == before:
            await trio.sleep(0.001)
        assert stopped.pid is not None
        os.kill(stopped.pid, signal.SIGSTOP)
        if stopped is decode:
            while not (await prefill.query("counters"))["arena_used_bytes"]:
                await trio.sleep(0.001)
        else:
            counters = await decode.query("counters")
            assert counters["kv_blocks_reserved"]
            assert counters["kv_imports"]


@pytest.mark.deadline(180)
@pytest.mark.slow
async def test_deaths_and_aborts_at_random_leave_nothing(model: str) -> None:
    """Workers of both pools die under load, with TCP between them; every request ends with its own tokens or with a
    typed failure."""
    requests = [asks(PROMPTS[i % 24]) for i in range(120)]
    async with serving(model, *TWO_POOLS, "edges.llm.kv.connector=tcp") as orchestrator:
        expected = await answers(orchestrator, [asks(p) for p in PROMPTS], 8)
        found: list[list[int] | OmniError] = []

        async def load() -> None:
            found.extend(await answers(orchestrator, requests, 8))

        rng = random.Random(5)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(load)
            for _ in range(4):
                await trio.sleep(rng.uniform(0.05, 0.2))
                victim = pool(orchestrator, rng.choice(["llm-prefill", "llm"]))
                if victim.live and not found:
                    kill(victim.pid)
                with trio.fail_after(60):
                    await until(lambda: orchestrator.ready)
        for index, result in enumerate(found):
            if isinstance(result, OmniError):
                assert result.info.code in ("stage_died", "stage_unavailable")
            else:
                assert result == expected[index % 24]
        assert await answers(orchestrator, [asks(p) for p in PROMPTS], 8) == expected


@pytest.mark.deadline(60)
@pytest.mark.slow
async def test_pools_of_two_models_refuse_each_others_keys(model: str, tmp_path: Path) -> None:
    other = tiny_models.save(tmp_path, seed=1, head_dim=64)
    async with serving(model, *TWO_POOLS, f"stages.llm.prefill.model={other}") as orchestrator:
        with pytest.raises(OmniError) as refused:
            await answer(orchestrator, asks(PROMPTS[0]))
        assert refused.value.info.code == "kv_layout"
        assert "model" in refused.value.info.message
        assert refused.value.info.status == 500
