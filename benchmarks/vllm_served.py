"""The vLLM engine behind this server, against vLLM's own server: same folder, same engine, alternating runs.

Both are started with the same model, dtype, context, cache and batch, and loaded by the same client, one at a time, the
order changing from round to round. The other server is up beside the measured one, and has to be idle before each load:
an engine that polls, or works on for clients that have left, would slow the measured one. The servers differ in the way
around the engine: HTTP, admission, the worker's loop, text. Runs in the environment of ``make vllm-setup``.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from operator import truediv
from pathlib import Path
from typing import Any

from idle import wait_idle
from report import Aim, Report, arguments

CONTEXT, CACHE_MIB, BATCH = 512, 512, 64
START_S = 900.0

TTFT_AIM, THROUGHPUT_AIM = 1.05, 0.95


@dataclass
class Figures:
    """The figures of one server at one concurrency: a value per round."""

    ttft_s: list[float] = field(default_factory=list)
    tokens_per_s: list[float] = field(default_factory=list)


@contextmanager
def running(command: Sequence[str], port: int, log: Path) -> Iterator[int]:
    """Run a server in a process group of its own, by its number, once it is healthy; all its processes are ended."""
    own = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    with log.open("wb") as out:
        server = subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, env=os.environ | own, start_new_session=True
        )
    try:
        deadline = time.monotonic() + START_S
        while not _healthy(port):
            if server.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{' '.join(command)} did not start:\n{log.read_text()[-3000:]}")
            time.sleep(0.5)
        yield server.pid
    finally:
        for number in (signal.SIGINT, signal.SIGKILL):
            try:
                os.killpg(server.pid, number)
                server.wait(30)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue


def _healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=10) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def ours(model: Path, port: int, eager: bool) -> list[str]:
    settings = {
        "engine": "vllm",
        "options.max_model_len": CONTEXT,
        "options.kv_memory_mib": CACHE_MIB,
        "options.max_batch": BATCH,
        "options.arguments": f"{{enforce_eager: {str(eager).lower()}}}",
        "start_timeout_s": START_S,
    }
    given = [it for key, value in settings.items() for it in ("--set", f"stages.llm.{key}={value}")]
    command = [sys.executable, "-m", "omni_actors", "serve", str(model), "--platform", "cpu", "--port", str(port)]
    return [*command, "--served-model-name", "it", *given]


def bare(model: Path, port: int, eager: bool) -> list[str]:
    settings = {
        "model": model,
        "served-model-name": "it",
        "host": "127.0.0.1",
        "port": port,
        "dtype": "float32",
        "max-model-len": CONTEXT,
        "kv-cache-memory-bytes": CACHE_MIB << 20,
        "max-num-seqs": BATCH,
    }
    given = [it for key, value in settings.items() for it in (f"--{key}", str(value))]
    # Logs of requests and statistics are not what is measured.
    quiet = ["--disable-log-stats", "--disable-uvicorn-access-log"]
    return [
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server", *given, *quiet),
        *(["--enforce-eager"] if eager else []),
    ]


def load(port: int, concurrency: int, requests: int, tokens: int, warm: bool, folder: Path) -> tuple[float, float]:
    """Return the median time to first token in seconds, and tokens per second, of one run of chats, all of which must
    be complete."""
    found = folder / "bench.json"
    body = json.dumps({"ignore_eos": True, "temperature": 0})
    subprocess.run(
        [
            *(sys.executable, "-m", "omni_actors", "bench", "chat", "--url", f"http://127.0.0.1:{port}/v1"),
            *("--model", "it", "--concurrency", str(concurrency), "--requests", str(requests), "--repeats", "1"),
            *("--max-tokens", str(tokens), "--body", body, "--warmup", "4" if warm else "0", "--json", str(found)),
        ],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    median = json.loads(found.read_text())["results"][0]["median"]
    return median["ttft_p50"], median["output_tokens_per_s"]


def main() -> None:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, help="folder of the model (default: the demo's SmolLM2)")
    parser.add_argument("--compiled", action="store_true", help="let vLLM compile the model in both servers")
    parser.add_argument("--port", type=int, default=8750, help="the first of two ports")
    options = parser.parse_args()
    if find_spec("vllm") is None:
        print("vLLM is not installed here: make vllm-bench")
        return
    model = options.model
    if model is None:
        from omni_actors.models.weights import demo_folder, pull

        pull(("demo",))
        model = demo_folder() / "llm"
    loops, rounds, tokens = ((1, 8), 1, 16) if options.quick else ((1, 8, 32), 3, 64)
    eager = not options.compiled
    report = Report(f"vLLM engine served here against vLLM's own server: {model.name}, {tokens} tokens an answer")
    figures = {(name, c): Figures() for name in ("ours", "bare") for c in loops}
    with tempfile.TemporaryDirectory() as held:
        folder = Path(held)
        ports = {"ours": options.port, "bare": options.port + 1}
        with (
            running(ours(model, ports["ours"], eager), ports["ours"], folder / "ours.log") as our_pid,
            running(bare(model, ports["bare"], eager), ports["bare"], folder / "bare.log") as bare_pid,
        ):
            for turn in range(rounds):
                for c in loops:
                    for name in ("ours", "bare") if turn % 2 == 0 else ("bare", "ours"):
                        count = c * (2 if options.quick else 4)
                        wait_idle(our_pid, "our server")
                        wait_idle(bare_pid, "vLLM's server")
                        ttft, rate = load(ports[name], c, count, tokens, turn == 0, folder)
                        figures[name, c].ttft_s.append(ttft)
                        figures[name, c].tokens_per_s.append(rate)
    for c in loops:
        here, there = figures["ours", c], figures["bare", c]
        row: dict[str, Any] = {"clients": c}
        for name, it in (("ours", here), ("vLLM's", there)):
            row[f"TTFT ms, {name}"] = 1e3 * statistics.median(it.ttft_s)
            row[f"tokens/s, {name}"] = statistics.median(it.tokens_per_s)
        report.rows.append(row)
        ttft = statistics.median(map(truediv, here.ttft_s, there.ttft_s))
        rate = statistics.median(map(truediv, here.tokens_per_s, there.tokens_per_s))
        report.aims.append(Aim(f"C={c}: TTFT, ours / vLLM's", ttft, TTFT_AIM, "<="))
        report.aims.append(Aim(f"C={c}: tokens/s, ours / vLLM's", rate, THROUGHPUT_AIM, ">="))
    report.notes.append(f"{rounds} rounds, order alternating; load average at the end {os.getloadavg()[0]:.1f}")
    report.show()
    if options.json:
        report.write(options.json)


if __name__ == "__main__":
    main()
