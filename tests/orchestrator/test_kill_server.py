"""``kill -9`` of the serving process, with requests under way: nothing is left within two seconds."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from .spine import alive, kill

_SERVER = """
import sys, trio
from omni_actors.orchestrator import open_orchestrator
from omni_actors.pipelines.factory import resolve
from omni_actors.protocol.request import Request

async def one(orchestrator):
    async with orchestrator.open(Request(task="echo", params={"stub": {"bytes": 1 << 20, "stall": "c"}})) as stream:
        await stream.receive()

async def main():
    async with open_orchestrator(resolve("stub")) as orchestrator:
        await orchestrator.wait_ready()
        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(one, orchestrator)
            c = orchestrator.pools["c"].replicas[0]
            while len(c.requests) < 4:
                await trio.sleep(0.01)
            await trio.sleep(0.1)
            pids = [r.pid for pool in orchestrator.pools.values() for r in pool.replicas]
            print(*pids, flush=True)

trio.run(main)
"""


@pytest.mark.parametrize("how", ["kill -9", "terminate"])
def test_nothing_outlives_the_serving_process(how: str) -> None:
    server = subprocess.Popen([sys.executable, "-c", _SERVER], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    pids = [int(pid) for pid in server.stdout.readline().split()]
    assert len(pids) == 3
    assert all(map(alive, pids))
    if how == "kill -9":
        kill(server.pid)
    else:
        server.terminate()
    server.wait(5)
    deadline = time.monotonic() + 2.0
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not [pid for pid in pids if alive(pid)]
