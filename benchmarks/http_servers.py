"""The cost of HTTP: this project's server beside its peers, and the whole way through three worker processes.

    python benchmarks/http_servers.py [--quick] [--json FILE]

One server at a time has one core, the load (``httpload/load.c``, compiled here) another. Each load has a server of its
own, which is idle before the load: work for clients of an earlier load would be counted otherwise. All servers do the
same work: JSON in and out, a chunk of a streamed chat completion per token, WebSocket frames of 40 ms of sound. CPU is
the server process's own, by the kernel's accounting, over the measured time. Saturated streams get the next token when
all have written theirs; paced streams get 20 per second each, and the delay is from the making of a token to its
arrival. The whole way is ``/v1/chat/completions`` through the orchestrator and three stages without a model.

The peers are the extra ``bench``; without the extra (or a C compiler) the benchmark reports that.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from httpload import work
from idle import REST, busy_still, cpu_ns, machine_busy, wait_idle
from report import Aim, Report, arguments

HERE = Path(__file__).parent
PEERS = ("fastapi", "uvicorn", "uvloop", "httptools", "websockets")
CORES = sorted(os.sched_getaffinity(0))
SERVER_CORE, LOAD_CORE = {CORES[0]}, {CORES[-1]}

SERVERS = {
    "ours, direct": ["httpload.on_trio", "direct"],
    "ours, Quart": ["httpload.on_trio", "quart"],
    "Quart on Hypercorn": ["httpload.on_trio", "hypercorn"],
    "FastAPI on uvicorn": ["httpload.on_asyncio"],
}
WHOLE_WARM_S = 1.0
WHOLE_S = 2.0
"""Least time that is measured of the whole way."""
FLOOR = "floor (C, a constant reply)"
WHOLE = "ours, three stages behind it"

CHAT = {"model": "stub", "messages": [{"role": "user", "content": "What is the capital of France?"}]}


@dataclass(frozen=True)
class Load:
    """One row: a kind of request, and a number of clients."""

    name: str
    mode: str
    path: str
    clients: int
    quick: bool = True
    more: tuple[str, ...] = ()


LOADS = (
    Load("JSON", "http", "/json", 1),
    Load("JSON", "http", "/json", 32),
    Load("JSON, no model", "http", "/raw", 1, quick=False),
    Load("JSON, no model", "http", "/raw", 32),
    Load("tokens", "stream", "/saturated", 1, quick=False),
    Load("tokens", "stream", "/saturated", 32),
    Load("tokens", "stream", "/saturated", 256, quick=False),
    Load("tokens at 20/s", "stream", "/paced", 32, quick=False),
    Load("tokens at 20/s", "stream", "/paced", 256),
    Load("frames, echo", "echo", "/echo", 1, quick=False, more=(str(len(work.FRAME)), "0")),
    Load("frames, echo", "echo", "/echo", 64, more=(str(len(work.FRAME)), "0")),
    Load("frames, echo at 50/s", "echo", "/echo", 64, quick=False, more=(str(len(work.FRAME)), "50")),
    Load("frames, pushed", "push", "/push", 32),
)


def main() -> None:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--only", metavar="WORD", help="only servers with this word in their name")
    parser.add_argument("--loads", metavar="WORD", help="only loads with this word in their name")
    options = parser.parse_args()
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        sys.exit("The load is a C program: install a C compiler (gcc or clang).")
    missing = [name for name in PEERS if importlib.util.find_spec(name) is None]
    servers = {name: command for name, command in SERVERS.items() if not missing or "uvicorn" not in name}
    if options.only:
        servers = {name: command for name, command in servers.items() if options.only in name}
    loads = [it for it in LOADS if (it.quick or not options.quick) and (options.loads or "") in it.name]
    seconds = 0.6 if options.quick else 3.0
    rows: list[dict[str, Any]] = []
    before = machine_busy()
    with tempfile.TemporaryDirectory() as folder:
        load = Path(folder) / "load"
        subprocess.run([compiler, "-O2", "-o", load, HERE / "httpload" / "load.c"], check=True)
        bench = Bench(load, Path(folder), 0.2 if options.quick else 0.5, seconds)
        if not options.loads and (not options.only or options.only in FLOOR):
            rows += bench.floor()
        for name, command in servers.items():
            rows += bench.server(name, command, loads)
        if not options.loads and (not options.only or options.only in WHOLE):
            rows += bench.whole(options.quick)
    report = Report("HTTP, server-sent events and WebSockets: one server core", rows, aims(rows))
    if missing:
        report.notes.append(f"Without FastAPI on uvicorn: {', '.join(missing)} missing; pip install '.[bench]'.")
    report.notes.append(f"cores of the machine in use before this run: {before:.2f}")
    report.show()
    if options.json:
        report.write(options.json)


class Bench:
    def __init__(self, load: Path, folder: Path, warm_s: float, seconds: float) -> None:
        self._load = load
        self._folder = folder
        self._times = [str(warm_s), str(seconds)]

    def floor(self) -> list[dict[str, Any]]:
        port = free_port()
        rows = []
        with running([str(self._load), "serve", str(port)], port) as server:
            for clients in (1, 32):
                found = self._measure(server, port, Load("JSON", "http", "/", clients), work.BODY)
                rows.append(row(FLOOR, "JSON", clients, found))
        return rows

    def server(self, name: str, command: Sequence[str], loads: Sequence[Load]) -> list[dict[str, Any]]:
        rows = []
        for load in loads:
            if load.path == "/raw" and "uvicorn" not in name:
                continue
            port = free_port()
            with running([sys.executable, "-m", *command, str(port)], port) as server:
                made = row(name, load.name, load.clients, self._measure(server, port, load, work.BODY))
                if (left := busy_still(server.pid)) > REST:
                    made["busy after, %"] = 100 * left
                rows.append(made)
        return rows

    def whole(self, quick: bool) -> list[dict[str, Any]]:
        """Measure the whole way through the server and its workers.

        The workers may run on any core that the load does not use. Five processes have to warm up first: code that
        Python has just begun to execute is slower than later, and so is memory at its first touch.
        """
        self._times = [str(WHOLE_WARM_S), str(max(WHOLE_S, float(self._times[1])))]
        port = free_port()
        rows = []
        chat = json.dumps(CHAT).encode()
        path = "/v1/chat/completions"
        with running([sys.executable, "-m", "httpload.whole", str(port)], port, cores=None) as server:
            wait_ready(port)
            for clients in (1, 32):
                found = self._measure(server, port, Load("chat", "http", path, clients), chat)
                rows.append(row(WHOLE, "chat", clients, found))
            streamed = json.dumps(CHAT | {"stream": True, "max_tokens": 1_000_000}).encode()
            for clients in (256,) if quick else (32, 256):
                found = self._measure(server, port, Load("tokens", "stream", path, clients), streamed)
                rows.append(row(WHOLE, "chat, tokens at 20/s", clients, found))
        return rows

    def _measure(self, server: subprocess.Popen[bytes], port: int, load: Load, body: bytes) -> dict[str, float]:
        request = self._folder / "request"
        wait_idle(server.pid, " ".join(map(str, server.args)))  # type: ignore[arg-type]
        request.write_bytes(upgrade(load.path) if load.mode in ("echo", "push") else post(load.path, body))
        command = [str(self._load), load.mode, str(port), str(load.clients), *self._times, str(request)]
        with subprocess.Popen([*command, *load.more], stdout=subprocess.PIPE, preexec_fn=on(LOAD_CORE)) as generator:
            assert generator.stdout is not None
            if generator.stdout.readline() != b"begin\n":
                raise RuntimeError(f"{load.name}: the load could not begin")
            before = cpu_ns(server.pid)
            found: dict[str, float] = json.loads(generator.stdout.readline())
            if not found["units"]:
                raise RuntimeError(f"{load.name}: nothing came back in {self._times[1]} s")
            found["cpu_us"] = (cpu_ns(server.pid) - before) / found["units"] / 1e3
        time.sleep(0.1)  # the server sees that its clients have left
        return found


def row(server: str, load: str, clients: int, found: dict[str, float]) -> dict[str, Any]:
    made: dict[str, Any] = {
        "server": server,
        "load": load,
        "clients": clients,
        "per second": found["units"] / found["seconds"],
        "CPU us": found["cpu_us"],
    }
    if load != "tokens" and "pushed" not in load:
        made |= {"p50 us": found["p50_us"], "p99 us": found["p99_us"]}
    if found["errors"]:
        made["errors"] = int(found["errors"])
    return made


def aims(rows: list[dict[str, Any]]) -> list[Aim]:
    by = {(it["server"], it["load"], it["clients"]): it for it in rows}
    made: list[Aim] = []

    def against(ours: str, theirs: str, load: str, their_load: str, clients: int, share: float) -> None:
        left, right = by.get((ours, load, clients)), by.get((theirs, their_load, clients))
        if left and right:
            name = f"{load}, {clients} clients: CPU of {ours!r} against {theirs!r}"
            made.append(Aim(name, left["CPU us"] / right["CPU us"], share, "<="))

    fastapi, hypercorn = "FastAPI on uvicorn", "Quart on Hypercorn"
    for load, clients in (("tokens", 32), ("tokens", 256), ("frames, echo", 64), ("frames, pushed", 32)):
        against("ours, direct", fastapi, load, load, clients, 1.0)
        against("ours, Quart", hypercorn, load, load, clients, 0.6)
    for clients in (1, 32):
        against("ours, direct", fastapi, "JSON", "JSON, no model", clients, 1.0)
        against("ours, Quart", hypercorn, "JSON", "JSON", clients, 0.6)
    if alone := by.get((WHOLE, "chat", 1)):
        made.append(Aim("the whole way, 1 client, p50 ms", alone["p50 us"] / 1e3, 0.5, "<="))
        made.append(Aim("the whole way, 1 client, p99 ms", alone["p99 us"] / 1e3, 0.8, "<="))
    if many := by.get((WHOLE, "chat", 32)):
        made.append(Aim("the whole way, 32 clients, requests/s", many["per second"], 9000, ">="))
    if streams := by.get((WHOLE, "chat, tokens at 20/s", 256)):
        made.append(Aim("the whole way, token delay of 256 streams, p99 ms", streams["p99 us"] / 1e3, 3, "<="))
    return made


def post(path: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: load/1\r\nAccept: */*\r\n"
    return head.encode() + b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body


def upgrade(path: str) -> bytes:
    return (
        f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: load/1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    ).encode()


def on(cores: set[int] | None) -> Any:
    return None if cores is None else lambda: os.sched_setaffinity(0, cores)


@contextmanager
def running(command: list[str], port: int, cores: set[int] | None = SERVER_CORE) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server until it answers on its port. The server and its workers are killed in the end."""
    environment = os.environ | {"PYTHONPATH": str(HERE), "OMP_NUM_THREADS": "1"}
    with ExitStack() as stack:
        server = stack.enter_context(
            subprocess.Popen(
                command, preexec_fn=on(cores), env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
        )
        stack.callback(server.kill)
        deadline = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                if server.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"{' '.join(command)} does not serve") from None
                time.sleep(0.05)
        yield server


def wait_ready(port: int) -> None:
    """Wait until the server's stages are loaded."""
    deadline = time.monotonic() + 60
    while True:
        client = HTTPConnection("127.0.0.1", port, timeout=10)
        client.request("GET", "/health")
        if client.getresponse().status == 200:
            return
        if time.monotonic() > deadline:
            raise RuntimeError("its stages are not ready")
        time.sleep(0.1)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


if __name__ == "__main__":
    main()
