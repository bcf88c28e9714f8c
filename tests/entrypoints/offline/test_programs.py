"""Whole programs of three kinds: two requests at once, one cancelled, one with a deadline; then nothing is left.

Each runs in a process of its own. What it has to say it prints as one line: the library itself writes nothing there.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

COMMON = """
import json, os, sys, threading
from omni_actors import OmniError, Sampling

ENDLESS = Sampling(max_tokens=1_000_000)
SLOW = ["stages.writer.options.step_s=0.005"]
SHORT = Sampling(max_tokens=3)


def children():
    found = []
    for task in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{task}/children") as file:
                found += file.read().split()
        except FileNotFoundError:
            continue  # a thread that has just ended
    return len(found)


async def _quiet(omni):
    orchestrator = omni.orchestrator
    while orchestrator.inflight:
        await orchestrator.vacant.park()
    counters = await orchestrator.counters()
    return [int(replicas[0]["running"]) for replicas in counters.values() if "running" in replicas[0]]


def report(**found):
    # trio keeps its idle worker threads for a while; they hold nothing
    threads = [it.name for it in threading.enumerate() if not it.name.startswith("Trio thread")]
    print(json.dumps({**found, "children": children(), "threads": threads}))
"""

PROGRAMS = {
    "trio": """
import trio
from omni_actors import open_omni

async def main():
    found = {}
    async with open_omni("stub-voice", platform="cpu", overrides=SLOW) as omni:
        async def ask(name):
            found[name] = (await omni.chat(name, SHORT)).text
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, "a")
            nursery.start_soon(ask, "b")
        with trio.move_on_after(0.2) as scope:
            await omni.chat("c", ENDLESS)
        found["cancelled"] = scope.cancelled_caught
        try:
            await omni.chat("d", ENDLESS, deadline_s=0.2)
        except OmniError as error:
            found["deadline"] = error.info.code
        async with omni.stream.chat("e", ENDLESS) as stream:
            found["streamed"] = bool((await stream.receive()).text)
        found["running"] = await _quiet(omni)
        found["tasks"] = 0
    root = trio.lowlevel.current_root_task()
    found["tasks"] = len(trio.lowlevel.current_task().child_nurseries)
    report(**found)

trio.run(main)
""",
    "thread": """
from omni_actors import Omni

found = {}
with Omni("stub-voice", platform="cpu", overrides=SLOW) as omni:
    futures = {name: omni.submit.chat(name, SHORT) for name in "ab"}
    found.update({name: future.result(10).text for name, future in futures.items()})
    endless = omni.submit.chat("c", ENDLESS)
    with omni.stream.chat("e", ENDLESS) as stream:
        found["streamed"] = bool(next(stream).text)
        found["cancelled"] = endless.cancel() and endless.cancelled()
    try:
        omni.chat("d", ENDLESS, deadline_s=0.2)
    except OmniError as error:
        found["deadline"] = error.info.code
    found["running"] = omni._portal.call(_quiet, omni._omni)
    left = omni.submit.chat("f", ENDLESS)
found["tasks"] = 0 if left.cancelled() else 1
report(**found)
""",
    "asyncio": """
import asyncio
from omni_actors import open_omni_asyncio

async def main():
    found = {}
    async with open_omni_asyncio("stub-voice", platform="cpu", overrides=SLOW) as omni:
        a, b = await asyncio.gather(omni.chat("a", SHORT), omni.chat("b", SHORT))
        found.update(a=a.text, b=b.text)
        try:
            async with asyncio.timeout(0.2):
                await omni.chat("c", ENDLESS)
        except TimeoutError:
            found["cancelled"] = True
        try:
            await omni.chat("d", ENDLESS, deadline_s=0.2)
        except OmniError as error:
            found["deadline"] = error.info.code
        async with omni.stream.chat("e", ENDLESS) as stream:
            async for event in stream:
                found["streamed"] = bool(event.text)
                break
        found["running"] = await asyncio.wrap_future(omni._portal.submit(_quiet, omni._omni))
    found["tasks"] = len(asyncio.all_tasks()) - 1
    return found

report(**asyncio.run(main()))
""",
}


@pytest.mark.parametrize("kind", PROGRAMS)
def test_a_program_is_served_and_nothing_is_left(kind: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", COMMON + PROGRAMS[kind]], capture_output=True, text=True, timeout=25, check=False
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 1, done.stdout  # the library writes nothing to standard output
    found: dict[str, Any] = json.loads(done.stdout)
    assert (len(found["a"].split()), len(found["b"].split())) == (3, 3)
    assert found["cancelled"] is True
    assert found["streamed"] is True
    assert found["deadline"] == "deadline_exceeded"
    assert found["running"] == [0, 0]
    assert (found["tasks"], found["children"], found["threads"]) == (0, 0, ["MainThread"])
