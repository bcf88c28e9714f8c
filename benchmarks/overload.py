"""Four times the capacity of a deployment, for a minute: the fate of admitted requests, and of the others.

Tiny Qwen3-Omni's thinker behind the whole HTTP server, answers of a fixed length. First come closed loops of as many
clients as a batch holds: the unloaded figure, and the capacity of the deployment. Then four times the capacity arrives,
evenly, whatever comes back. A tenth of the requests has an API key of its own, which asks for less than its half: all
of that tenth is to be served. The clients are a process of their own.

The table's times are milliseconds. *Alone* and *inside* are from a request's admission to the end of its answer, as the
server sees it, before and in the overload; *429* is from a request's first byte to the last byte of its refusal, as the
client sees it. *Flood* and *modest* are the shares of each key's requests that were answered; *MiB* is the growth of a
process in the second half.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio

from omni_actors.entrypoints.app import build_app
from omni_actors.entrypoints.options import ServerOptions
from omni_actors.entrypoints.server import serve
from omni_actors.models.tiny.cache import cached
from omni_actors.orchestrator import Orchestrator, RequestStream, open_orchestrator
from omni_actors.orchestrator.owner import RequestObserver
from omni_actors.pipelines.factory import resolve
from omni_actors.pipelines.plan import Plan
from omni_actors.pipelines.subgraph import restricted, subgraph
from omni_actors.protocol.request import Request
from report import Aim, Report, arguments, percentile

BATCH = 8
TOKENS = 48
TIMES = 4
HERE = Path(__file__).parent
KEYS = ("flood", "modest")
SHARE = 0.1
"""Of what arrives, with the second key."""

BODY = {
    "messages": [{"role": "user", "content": "Tell me something about the sea."}],
    "max_tokens": TOKENS,
    "min_tokens": TOKENS,
    "ignore_eos": True,
    "temperature": 0,
}


# --- the clients ----------------------------------------------------------------------------------------------------

Answer = tuple[str, int, float, float]
"""Key, status, seconds, and ``Retry-After``."""


async def clients(port: int, how: str, amount: float, seconds: float) -> tuple[list[Answer], float]:
    """Return the outcomes and times seen by the clients."""
    words = [str(port), how, str(amount), str(seconds), str(SHARE), *KEYS]
    command = [sys.executable, "-m", "httpload.open_loop", *words]
    done = json.loads(
        (await trio.run_process(command, capture_stdout=True, stdin=json.dumps(BODY).encode(), cwd=HERE)).stdout
    )
    return [(key, status, took, after) for key, status, took, after in done["seen"]], done["wall_s"]


# --- the server ------------------------------------------------------------------------------------------------------


@dataclass
class Measured:
    """An orchestrator that notes the waiting time and the running time of each request."""

    orchestrator: Orchestrator
    waited: list[float] = field(default_factory=list)
    inside: list[float] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.orchestrator, name)

    @asynccontextmanager
    async def open(
        self, request: Request, observer: RequestObserver | None = None
    ) -> AsyncGenerator[RequestStream, None]:
        came = time.perf_counter()
        async with self.orchestrator.open(request, observer) as stream:
            admitted = time.perf_counter()
            self.waited.append(admitted - came)
            yield stream
        self.inside.append(time.perf_counter() - admitted)

    def take(self) -> tuple[list[float], list[float]]:
        found = self.waited, self.inside
        self.waited, self.inside = [], []
        return found


def deployment(queue: int) -> Plan:
    settings = (f"stages.thinker.options.max_batch={BATCH}", "stages.thinker.threads=1", f"limits.max_queued={queue}")
    plan = resolve(str(cached("qwen3-omni")), platform="cpu", overrides=settings)
    return restricted(plan, subgraph(plan, "chat", ("text",), ("text",)))


@asynccontextmanager
async def served(plan: Plan) -> AsyncIterator[tuple[Measured, int]]:
    """Return the share of a key's requests that was answered."""
    async with open_orchestrator(plan, log_level="WARNING") as orchestrator:
        await orchestrator.wait_ready()
        measured = Measured(orchestrator)
        app = build_app(measured, None, plan, ServerOptions(api_keys=KEYS))
        async with trio.open_nursery() as nursery:
            (url,) = await nursery.start(serve, app, "127.0.0.1", 0)
            yield measured, int(url.rpartition(":")[2])
            nursery.cancel_scope.cancel()


def rss_mib(pid: int) -> float:
    with open(f"/proc/{pid}/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


async def watch_memory(orchestrator: Orchestrator, samples: list[dict[str, float]]) -> None:
    """Record every second the memory of this process and of the workers."""
    while True:
        pids = {name: pool.replicas[0].pid for name, pool in orchestrator.pools.items()}
        samples.append({"server": rss_mib(os.getpid())} | {n: rss_mib(pid) for n, pid in pids.items() if pid})
        await trio.sleep(1.0)


@dataclass
class Outcome:
    capacity: float
    """Requests per second, with as many clients as a batch holds."""
    unloaded: list[float]
    waited: list[float]
    inside: list[float]
    answers: list[Answer]
    growth_mib: float
    """Of all processes, in the second half."""
    refused: Mapping[str, int]
    left: int
    """Requests that were in some table when all had been answered."""

    def took(self, status: int) -> list[float]:
        return [seconds for _, found, seconds, _ in self.answers if found == status]

    def served(self, key: str) -> float:
        """The share of a key's requests that was answered."""
        own = [status for name, status, _, _ in self.answers if name == key]
        return own.count(200) / len(own)


async def run(queue: int, calm_s: float, overload_s: float) -> Outcome:
    async with served(deployment(queue)) as (measured, port):
        await clients(port, "closed", BATCH, calm_s / 2)  # warm
        measured.take()
        calm, wall_s = await clients(port, "closed", BATCH, calm_s)
        capacity = len(calm) / wall_s
        _, unloaded = measured.take()
        samples: list[dict[str, float]] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch_memory, measured.orchestrator, samples)
            answers, _ = await clients(port, "opened", TIMES * capacity, overload_s)
            nursery.cancel_scope.cancel()
        waited, inside = measured.take()
        load = measured.orchestrator.load()
        left = sum((*load.running.values(), *load.waiting.values(), *load.stages.values(), load.waiting_bytes))
        growth = max(samples[-1][name] - samples[len(samples) // 2][name] for name in samples[0])
        return Outcome(capacity, unloaded, waited, inside, answers, growth, load.refused, left)


def main() -> None:
    options = arguments(__doc__.splitlines()[0]).parse_args()
    calm_s, overload_s = (3.0, 9.0) if options.quick else (15.0, 60.0)
    report = Report(f"Overload: {TIMES} × what a batch of {BATCH} can do, for {overload_s:g} s")
    for queue in (0, 4 * BATCH):
        it = trio.run(run, queue, calm_s, overload_s)
        refused = it.took(429)
        ratio = percentile(it.inside, 0.99) / percentile(it.unloaded, 0.99)
        report.rows.append(
            {
                "queue": queue,
                "can /s": it.capacity,
                "came /s": len(it.answers) / overload_s,
                "served /s": len(it.took(200)) / overload_s,
                "alone p50": percentile(it.unloaded, 0.5) * 1e3,
                "p99": percentile(it.unloaded, 0.99) * 1e3,
                "inside p50": percentile(it.inside, 0.5) * 1e3,
                "p99 ms": percentile(it.inside, 0.99) * 1e3,
                "waited p99": percentile(it.waited, 0.99) * 1e3,
                "429 p50": percentile(refused, 0.5) * 1e3,
                "429 p99": percentile(refused, 0.99) * 1e3,
                "flood": it.served(KEYS[0]),
                "modest": it.served(KEYS[1]),
                "MiB": it.growth_mib,
            }
        )
        others = Counter(status for _, status, _, _ in it.answers if status not in (200, 429))
        after = [seconds for _, status, _, seconds in it.answers if status == 429]
        report.notes.append(
            f"max_queued {queue}: refused {dict(it.refused)}, told to come back after "
            f"{min(after):g} to {max(after):g} s; other answers: {dict(others) or 'none'}"
        )
        name = f"max_queued {queue}: "
        report.aims += [
            Aim(name + "p99 of admitted requests / unloaded", ratio, 1.5, "<="),
            Aim(name + "time to a refusal, p99 ms", percentile(refused, 0.99) * 1e3, 50, "<="),
            Aim(name + "share of capacity that is served", len(it.took(200)) / overload_s / it.capacity, 0.9, ">="),
            Aim(name + "growth of a process's memory, MiB", it.growth_mib, 2, "<="),
            Aim(name + "other answers, and entries left in tables", sum(others.values()) + it.left, 0, "<="),
        ]
        if queue:
            report.aims.append(Aim(name + "share of the modest key that is served", it.served(KEYS[1]), 0.99, ">="))
    report.show()
    if options.json:
        report.write(options.json)


if __name__ == "__main__":
    main()
