"""A bad request among eight in real workers: the request fails with the name of the stage at fault, and the other seven
are undisturbed."""

from __future__ import annotations

import random
from typing import Any

import pytest
import trio
from tests.worker.faulty_client import REGISTRY, say
from tests.worker.faulty_line import GROUPS, expected

from omni_actors.orchestrator import open_orchestrator
from omni_actors.pipelines.factory import resolve

FAULTS: dict[str, tuple[str, str, int, str]] = {
    # fault: stage, code, status, words
    "raise": ("speaker", "stage_failed", 500, "failed on this request"),
    "memory": ("speaker", "out_of_memory", 503, "not enough memory"),
    "shape": ("speaker", "stage_failed", 500, "tensor 'codes' of payload 'codes' is int64[5, 1], not int64[n, 2]"),
    "range": ("speaker", "stage_failed", 500, "a number that is not below 16"),
    "name": ("speaker", "stage_failed", 500, "lacks tensor 'codes'"),
    "crash bridge": ("codec", "stage_failed", 500, "failed on this request"),
    "nan": ("codec", "stage_failed", 500, "not finite"),
    "codec raise": ("codec", "stage_failed", 500, "failed on this request"),
    "codec memory": ("codec", "out_of_memory", 503, "not enough memory"),
}


@pytest.mark.deadline(60)
async def test_seven_of_eight_requests_give_the_same_output_as_alone() -> None:
    chance = random.Random(0)
    async with open_orchestrator(resolve("faulty", registry=REGISTRY, platform="cpu")) as orchestrator:
        with trio.fail_after(30):
            await orchestrator.wait_ready()
        before = {name: pool.replicas[0].incarnation for name, pool in orchestrator.pools.items()}
        for fault, (stage, code, status, words) in FAULTS.items():
            for bad in (0, 3, 7):
                codes = [[[chance.randrange(13) for _ in range(GROUPS)] for _ in range(5)] for _ in range(8)]
                results: dict[int, Any] = {}

                async def one(at: int, it: list[list[int]], fault: str, results: dict[int, Any] = results) -> None:
                    results[at] = await say(orchestrator, it, fault)

                with trio.fail_after(10):
                    async with trio.open_nursery() as nursery:
                        for at, it in enumerate(codes):
                            nursery.start_soon(one, at, it, fault if at == bad else "")
                error = results.pop(bad)
                assert (error.stage, error.code, error.status) == (stage, code, status), error
                assert words in error.message
                assert "secret" not in error.message
                assert results == {at: expected(it) for at, it in enumerate(codes) if at != bad}
        after = {name: pool.replicas[0].incarnation for name, pool in orchestrator.pools.items()}
        assert after == before, "a worker ended"
