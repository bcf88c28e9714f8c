"""A job that does not fit into memory fails and ends; the next, smaller job is done."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from tests.worker.faulty_client import REGISTRY, say
from tests.worker.faulty_line import FITS, expected

from omni_actors.orchestrator import open_orchestrator
from omni_actors.pipelines.factory import resolve
from omni_actors.protocol.errors import ErrorInfo


def codes(frames: int) -> list[list[int]]:
    return [[frame % 13, (frame * 5) % 13] for frame in range(frames)]


@pytest.mark.deadline(60)
async def test_out_of_memory_is_one_jobs_failure() -> None:
    async with open_orchestrator(resolve("faulty", registry=REGISTRY, platform="cpu")) as orchestrator:
        with trio.fail_after(30):
            await orchestrator.wait_ready()
        for _ in range(2):
            with trio.fail_after(5):
                failed = await say(orchestrator, codes(FITS + 1))
                assert isinstance(failed, ErrorInfo)
                assert (failed.code, failed.status, failed.stage) == ("out_of_memory", 503, "speaker")
                assert await say(orchestrator, codes(FITS)) == expected(codes(FITS))

        # Eight at once that fit two and two: all of them are done.
        results: dict[int, Any] = {}

        async def one(frames: int) -> None:
            results[frames] = await say(orchestrator, codes(frames))

        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                for frames in range(FITS // 2 - 7, FITS // 2 + 1):
                    nursery.start_soon(one, frames)
        assert results == {frames: expected(codes(frames)) for frames in results}
        assert len(results) == 8
        with trio.fail_after(5):
            while any(counters["requests"] for [counters] in await gauges(orchestrator)):
                await trio.sleep(0.01)
        assert all(pool.replicas[0].incarnation == 1 for pool in orchestrator.pools.values()), "a worker ended"


async def gauges(orchestrator: Any) -> list[list[dict[str, float]]]:
    found = await orchestrator.counters()
    return [found["speaker"], found["codec"]]
