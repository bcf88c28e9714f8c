"""The cost of messages between actors: in one process, and across a process boundary.

    python benchmarks/actors.py [--quick] [--json FILE]

In-process figures are CPU time of this process per operation (so the load of the machine matters little); figures with
another process are wall time. The best of three runs is shown: slower runs were disturbed.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import time
from collections.abc import Awaitable, Callable
from typing import Any

import trio
from rich.console import Console
from rich.table import Table

from omni_actors.actors import (
    Actor,
    ActorCrashed,
    ActorRef,
    ProcessActor,
    Restarts,
    open_launcher,
    open_supervisor,
    python_module,
)

AIMS = {"tell": 0.8, "ask": 20.0}
"""Microseconds: what a prototype of 63 lines measured on the machine on which this was developed."""

CHAIN = 5


class Echo(Actor[Any]):
    handled = 0

    async def receive(self, message: Any) -> Any:
        if message == "boom":
            raise ValueError(message)
        self.handled += 1
        return message


class Forward(Actor[Any]):
    def __init__(self, target: ActorRef[Any]) -> None:
        self.target = target

    async def receive(self, message: Any) -> None:
        self.target.tell(message)


async def best(run: Callable[[int], Awaitable[float]], count: int) -> float:
    """Return microseconds per operation."""
    return min([await run(count) for _ in range(3)]) / count / 1e3


async def in_process(scale: int) -> dict[str, float]:
    rows: dict[str, float] = {}
    async with open_supervisor(restarts=Restarts(limit=None, first_s=0.001)) as root:
        echo = Echo()
        ref = root.start(lambda: echo, name="echo", capacity=200_000)
        await ref.wait_ready()

        async def tell(count: int) -> float:
            begin, target = time.process_time_ns(), echo.handled + count
            for number in range(count):
                ref.tell(number)
            while echo.handled < target:
                await trio.lowlevel.checkpoint()
            return time.process_time_ns() - begin

        async def ask(count: int) -> float:
            begin = time.process_time_ns()
            for number in range(count):
                await ref.ask(number, within=60)
            return time.process_time_ns() - begin

        async def ask_by_many(count: int) -> float:
            begin = time.process_time_ns()
            async with trio.open_nursery() as nursery:
                for _ in range(50):
                    nursery.start_soon(ask, count // 50)
            return time.process_time_ns() - begin

        rows["tell"] = await best(tell, 10_000 * scale)
        rows["ask"] = await best(ask, 1_000 * scale)
        rows["ask, 50 askers"] = await best(ask_by_many, 1_000 * scale)

        last = ref
        for number in range(CHAIN - 1):
            last = root.start(lambda target=last: Forward(target), name=f"link {number}", capacity=200_000)  # type: ignore[misc]

        async def chain(count: int) -> float:
            begin, target = time.process_time_ns(), echo.handled + count
            for number in range(count):
                last.tell(number)
            while echo.handled < target:
                await trio.lowlevel.checkpoint()
            return time.process_time_ns() - begin

        rows[f"through {CHAIN} actors"] = await best(chain, 2_000 * scale)

        async def start(count: int) -> float:
            begin = time.process_time_ns()
            async with open_supervisor() as other:
                for number in range(count):
                    last = other.start(Echo, name=str(number))
                await last.ask(1, within=60)
                return time.process_time_ns() - begin

        rows["start of an actor"] = await best(start, 50 * scale)

        sick = root.start(Echo, name="sick")

        async def crash(count: int) -> float:
            begin = time.perf_counter_ns()
            for _ in range(count):
                try:
                    await sick.ask("boom", within=60)
                except ActorCrashed:
                    await sick.ask("again", within=60)
            return time.perf_counter_ns() - begin

        rows["crash to the next answer (1 ms backoff)"] = await best(crash, 1)
    return rows


async def across_processes(scale: int) -> dict[str, float]:
    rows: dict[str, float] = {}
    async with open_launcher() as launcher, open_supervisor() as root:

        async def start(count: int) -> float:
            begin = time.perf_counter_ns()
            refs = [
                root.start(lambda: ProcessActor(launcher, "actors:Echo", env=ENV), name=f"{begin} {number}")
                for number in range(count)
            ]
            for ref in refs:
                await ref.wait_ready()
            ended = time.perf_counter_ns()
            for ref in refs:
                ref.stop()
                await ref.wait_stopped()
            return ended - begin

        rows["start of a process actor"] = await best(start, 1)
        ref = root.start(lambda: ProcessActor(launcher, "actors:Echo", env=ENV), name="remote", capacity=1000)
        await ref.wait_ready()

        async def ask(count: int) -> float:
            begin = time.perf_counter_ns()
            for number in range(count):
                await ref.ask(number, within=60)
            return time.perf_counter_ns() - begin

        async def tell(count: int) -> float:
            begin = time.perf_counter_ns()
            for number in range(count):
                if ref.depth > 900:
                    await ref.ask(number, within=60)
                ref.tell(number)
            await ref.ask("last", within=60)
            return time.perf_counter_ns() - begin

        rows["process actor: ask"] = await best(ask, 200 * scale)
        rows["process actor: tell"] = await best(tell, 1_000 * scale)

        async def death(count: int) -> float:
            total = 0
            for _ in range(count):
                victim = launcher.spawn(python_module("omni_actors.actors.remote"), env=ENV)
                begin = time.perf_counter_ns()
                victim.kill()
                await victim.wait()
                total += time.perf_counter_ns() - begin
                victim.close()
            return total

        rows["kill of a process to its reaping"] = await best(death, 5)
    return rows


ENV = {**os.environ, "PYTHONPATH": os.pathsep.join([os.path.dirname(__file__), os.environ.get("PYTHONPATH", "")])}


async def measure(scale: int) -> dict[str, float]:
    return {**await in_process(scale), **await across_processes(scale)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the operations")
    parser.add_argument("--json", metavar="FILE", help="write machine, rows and aims to this file")
    options = parser.parse_args()
    logging.disable()  # the crashes are meant
    rows = trio.run(measure, 2 if options.quick else 20)
    table = Table("operation", "µs", "aim")
    for name, value in rows.items():
        table.add_row(name, f"{value:,.2f}", f"≤ {AIMS[name]:g}" if name in AIMS else "")
    Console().print(table)
    if options.json:
        machine = {"cpus": os.cpu_count(), "python": platform.python_version(), "kernel": platform.release()}
        with open(options.json, "w") as file:
            json.dump({"machine": machine, "rows": rows, "aims": AIMS}, file, indent=2)


if __name__ == "__main__":
    main()
