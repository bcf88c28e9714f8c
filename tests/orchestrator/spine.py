"""Helpers for tests of the spine: the stub pipeline over real worker processes."""

from __future__ import annotations

import os
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import trio

from omni_actors.orchestrator import Orchestrator, open_orchestrator
from omni_actors.pipelines.factory import resolve
from omni_actors.protocol.request import Completed, Event, Request, TextDelta
from omni_actors.stages.replica import StageReplica

NO_RESUMES = "limits.max_resumes=0"
"""For tests of what a death or a break itself does."""


@asynccontextmanager
async def stub_orchestrator(*overrides: str) -> AsyncIterator[Orchestrator]:
    """A ready stub deployment, checked at the end to hold nothing."""
    async with open_orchestrator(resolve("stub", overrides=overrides)) as orchestrator:
        with trio.fail_after(20):
            await orchestrator.wait_ready()
        yield orchestrator
        with trio.fail_after(5):
            await idle(orchestrator)


async def idle(orchestrator: Orchestrator) -> None:
    """Wait until nothing of any request is left, here or in the live workers."""
    await until(lambda: not orchestrator.inflight)
    assert len(orchestrator.requests.deadlines) == 0
    load = orchestrator.load()
    assert not any((*load.running.values(), *load.waiting.values(), *load.stages.values(), load.waiting_bytes)), load
    for replica in replicas(orchestrator):
        assert not replica.requests
    for stage in (await orchestrator.counters()).values():
        for counters in stage:
            for gauge in ("running", "jobs", "early", "arena_used_bytes", "inbox_used_bytes", "credits_outstanding"):
                assert counters.get(gauge, 0) == 0, (gauge, counters)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that no event announces; the caller bounds it."""
    while not condition():
        await trio.sleep(0.002)


def replicas(orchestrator: Orchestrator) -> list[StageReplica]:
    return [replica for pool in orchestrator.pools.values() for replica in pool.replicas]


def stub(task: str = "echo", *, id: str | None = None, deadline_s: float | None = None, **section: Any) -> Request:
    return Request(task=task, params={"stub": section}, id=id, deadline_s=deadline_s)


async def collect(orchestrator: Orchestrator, request: Request) -> list[Event]:
    async with orchestrator.open(request) as stream:
        return [event async for event in stream]


def text_of(events: list[Event]) -> str:
    """The text of a completed request; exactly one terminal event, at the end."""
    assert [type(event) for event in events].count(Completed) == 1
    assert type(events[-1]) is Completed
    return "".join(event.text for event in events if type(event) is TextDelta)


def pieces(size: int, count: int) -> bytes:
    """What a stub stage hands on in ``count`` pieces of ``size`` bytes."""
    base = np.arange(size, dtype=np.uint32)
    return b"".join((base * (count - i)).astype(np.uint8).tobytes() for i in range(count))


def checksum(size: int, count: int = 1) -> str:
    data = pieces(size, count)
    return f"{len(data)}:{zlib.crc32(data)}"


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def kill(pid: int | None) -> None:
    assert pid is not None
    os.kill(pid, 9)
