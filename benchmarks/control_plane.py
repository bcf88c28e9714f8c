"""The cost of a request when the models cost nothing.

A three-stage stub pipeline, one worker process per stage, driven through the orchestrator in this process, without
HTTP: latency at 1 in flight, requests/s and CPU at 32, tokens/s and CPU per token with 256 streams. CPU is the serving
process's own (all its threads), from the kernel's accounting.

``--sglang-omni PYTHON SCRIPT`` runs SGLang-Omni's own pipeline runner with stub stages (a script that prints JSON lines
with ``inflight``, ``req_s`` and ``lat_ms``) in the same run, before and after ours. None of its processes may be left
when ours begins, and the report states the other load of the machine before each run.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from dataclasses import dataclass

import trio

from idle import machine_busy, run_alone
from omni_actors.orchestrator import Orchestrator, open_orchestrator
from omni_actors.pipelines.factory import resolve
from omni_actors.protocol.request import Completed, Request, TextDelta
from report import Aim, Report, arguments, percentile

# Measured once on a two-core machine of this kind; three stages each.
RECORDED = [
    {"system": "SGLang-Omni, recorded", "in flight": 1, "p50 ms": 3.02, "requests/s": 315},
    {"system": "SGLang-Omni, recorded", "in flight": 32, "p50 ms": 98.2, "requests/s": 321},
    {"system": "SGLang-Omni in one process, recorded", "in flight": 32, "p50 ms": 4.28, "requests/s": 6461},
    {"system": "vLLM-Omni without processes, recorded", "in flight": 1, "p50 ms": 0.37, "requests/s": 2251},
    {"system": "vLLM-Omni without processes, recorded", "in flight": 32, "p50 ms": 5.65, "requests/s": 5571},
]


@dataclass
class Load:
    p50_ms: float
    p99_ms: float
    per_s: float
    cpu_us: float


async def requests(orchestrator: Orchestrator, inflight: int, count: int) -> Load:
    """Run a closed loop of ``inflight`` callers."""
    latencies: list[float] = []

    async def caller(turns: int) -> None:
        for _ in range(turns):
            begun = time.perf_counter()
            text = ""
            async with orchestrator.open(Request(task="echo", params={"stub": {"text": "hello"}})) as stream:
                async for event in stream:
                    if type(event) is TextDelta:
                        text += event.text
            latencies.append(time.perf_counter() - begun)
            if text != "hello":
                raise RuntimeError(f"wrong result {text!r}")

    begun, cpu = time.perf_counter(), time.process_time()
    async with trio.open_nursery() as nursery:
        for _ in range(inflight):
            nursery.start_soon(caller, count // inflight)
    wall, cpu = time.perf_counter() - begun, time.process_time() - cpu
    done = len(latencies)
    return Load(percentile(latencies, 0.5) * 1e3, percentile(latencies, 0.99) * 1e3, done / wall, cpu / done * 1e6)


async def tokens(orchestrator: Orchestrator, streams: int, each: int) -> Load:
    """Receive the tokens of every stream one event at a time, as a streaming client would."""
    received = 0

    async def caller() -> None:
        nonlocal received
        count = 0
        async with orchestrator.open(Request(task="tokens", params={"stub": {"tokens": each}})) as stream:
            async for event in stream:
                count += type(event) is TextDelta
        if count != each or type(event) is not Completed:
            raise RuntimeError(f"{count} tokens of {each}")
        received += count

    begun, cpu = time.perf_counter(), time.process_time()
    async with trio.open_nursery() as nursery:
        for _ in range(streams):
            nursery.start_soon(caller)
    wall, cpu = time.perf_counter() - begun, time.process_time() - cpu
    return Load(0, 0, received / wall, cpu / received * 1e6)


async def ours(quick: bool) -> dict[str, Load]:
    rounds = 2 if quick else 5
    found: dict[str, list[Load]] = {}
    async with open_orchestrator(resolve("stub"), log_level="WARNING") as orchestrator:
        await orchestrator.wait_ready()
        await requests(orchestrator, 8, 1000)
        for _ in range(rounds):
            for inflight in (1, 8, 32, 128):
                load = await requests(orchestrator, inflight, 2000 if inflight == 1 else 6400)
                found.setdefault(str(inflight), []).append(load)
            found.setdefault("tokens", []).append(await tokens(orchestrator, 256, 200))
    return {name: _median(loads) for name, loads in found.items()}


def _median(loads: list[Load]) -> Load:
    return Load(*(statistics.median(getattr(load, name) for load in loads) for name in Load.__annotations__))


def sglang_omni(python: str, script: str) -> dict[int, dict[str, float]]:
    """Return the peer's figures by requests in flight."""
    command = [python, script, "--stages", "3", "--inflight", "1", "32", "--n", "1000"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    output = run_alone(command, env=environment, cwd=os.path.dirname(script))
    rows = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return {row["inflight"]: {"p50": row["lat_ms"]["p50"], "req_s": row["req_s"]} for row in rows}


def main() -> None:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--sglang-omni", nargs=2, metavar=("PYTHON", "SCRIPT"), help="measure SGLang-Omni too")
    options = parser.parse_args()
    in_use = [machine_busy()]
    peer = [sglang_omni(*options.sglang_omni)] if options.sglang_omni else []
    in_use.append(machine_busy())
    loads = trio.run(ours, options.quick)
    if options.sglang_omni and not options.quick:
        peer.append(sglang_omni(*options.sglang_omni))

    report = Report("Control plane: three stub stages, one process each, without HTTP")
    for name, load in loads.items():
        row: dict[str, object] = {"system": "omni-actors"}
        if name == "tokens":
            row |= {"in flight": "256 streams", "tokens/s": load.per_s, "CPU us/token": load.cpu_us}
        else:
            row |= {
                "in flight": int(name),
                "p50 ms": load.p50_ms,
                "p99 ms": load.p99_ms,
                "requests/s": load.per_s,
                "CPU us/request": load.cpu_us,
            }
        report.rows.append(row)
    for inflight in (1, 32) if peer else ():
        report.rows.append(
            {
                "system": "SGLang-Omni, this run",
                "in flight": inflight,
                "p50 ms": statistics.mean(it[inflight]["p50"] for it in peer),
                "requests/s": statistics.mean(it[inflight]["req_s"] for it in peer),
            }
        )
    report.rows += RECORDED
    report.aims = [
        Aim("p50 at 1 in flight, ms", loads["1"].p50_ms, 0.5, "<="),
        Aim("serving-process CPU per request at 32 in flight, us", loads["32"].cpu_us, 60, "<="),
        Aim("serving-process CPU per token, 256 streams, us", loads["tokens"].cpu_us, 5, "<="),
    ]
    if peer:
        best = max(it[32]["req_s"] for it in peer)
        report.aims.append(
            Aim("requests/s at 32 against SGLang-Omni's best in this run", loads["32"].per_s / best, 10, ">=")
        )
    report.notes.append(f"cores in use by others before the peer and before ours: {in_use[0]:.2f}, {in_use[1]:.2f}")
    report.show(["system", "in flight", "p50 ms", "p99 ms", "requests/s", "CPU us/request", "tokens/s", "CPU us/token"])
    if options.json:
        report.write(options.json)


if __name__ == "__main__":
    main()
