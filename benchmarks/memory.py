"""Growth of memory with finished requests: 20,000 short requests over HTTP, every fifth of them left by its client.

``omni-actors serve stub-voice`` as a process of its own: chats, whole and streamed, and speech, from closed loops of
clients. A client that leaves does so before its answer begins, or in the middle, by a reset. Resident memory of every
process is read forty times, with no request under way; the slope over the second half counts, by least squares. Each
time every gauge of ``/metrics`` for requests and their resources has to come back to zero.
"""

from __future__ import annotations

import json
import os
import random
import re
import socket
import statistics
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import trio

from report import Aim, Report, arguments

CLIENTS = 16
LEAVE = 0.2
ROUNDS = 40
SLOPE_KIB = 10.0
"""Per process and thousand requests, ten bytes a request: a table that kept one small object of each would grow by more
than a hundred. Over fewer requests the allocators' steps say more than that."""

ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
"""Of glibc: what is freed goes back to the system. By itself it keeps what the largest moment took, which comes at
random, and looks like growth."""

GAUGES = re.compile(
    r"^(omni_actors_(?:num_requests_\w+|waiting_request_bytes|http_requests_in_flight|stage_requests_in_flight"
    r"|stage_(?:running|requests|jobs|early|arena_used_bytes|inbox_used_bytes|credits_outstanding|blobs|clips|streams"
    r"|held_bytes))(?:\{.*\})?) (\S+)$",
    re.MULTILINE,
)
"""What is zero when nothing is under way."""

CHAT, SAY = "/v1/chat/completions", "/v1/audio/speech"


def bodies(words: int) -> list[tuple[str, bytes]]:
    chat = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": words}
    say = {"input": "word " * words, "response_format": "pcm"}
    asked = [(CHAT, chat), (CHAT, chat | {"stream": True}), (SAY, say)]
    return [(path, json.dumps(body).encode()) for path, body in asked]


SHORT, LONG = bodies(6), bodies(400)


@dataclass
class Clients:
    port: int
    chance: random.Random
    left: int = 0
    """Requests of this round that are to be made still."""
    outcomes: Counter[str] = field(default_factory=Counter)

    async def round(self, count: int) -> None:
        self.left = count
        async with trio.open_nursery() as nursery:
            for _ in range(CLIENTS):
                nursery.start_soon(self._loop)

    async def _loop(self) -> None:
        stream: trio.SocketStream | None = None
        while self.left:
            self.left -= 1
            stream = stream or await trio.open_tcp_stream("127.0.0.1", self.port)
            if self.chance.random() < LEAVE:
                await self._leave(stream)
                stream = None
                continue
            path, body = self.chance.choice(SHORT)
            await stream.send_all(_request(path, body))
            status = await _whole(stream)
            self.outcomes["answered" if status == 200 else f"status {status}"] += 1
        if stream is not None:
            await stream.aclose()

    async def _leave(self, stream: trio.SocketStream) -> None:
        path, body = self.chance.choice(LONG)
        await stream.send_all(_request(path, body))
        when = self.chance.random()
        if when < 0.4:
            await trio.sleep(when / 100)
        else:
            await stream.receive_some(1 + self.chance.randrange(2000))
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closing resets
        stream.socket.close()
        self.outcomes["left"] += 1


def _request(path: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def _whole(stream: trio.SocketStream) -> int:
    """Read one answer to its end, and return its status."""
    data = bytearray()

    async def more() -> None:
        part = await stream.receive_some(65536)
        if not part:
            raise RuntimeError("the server closed a connection")
        data.extend(part)

    while (end := data.find(b"\r\n\r\n")) < 0:
        await more()
    head = bytes(data[:end]).lower()
    if (found := re.search(rb"content-length: (\d+)", head)) is not None:
        while len(data) < end + 4 + int(found[1]):
            await more()
    else:
        while not data.endswith(b"\r\n0\r\n\r\n"):
            await more()
    return int(head.split(b" ", 2)[1])


@contextmanager
def server() -> Iterator[tuple[str, int]]:
    """Run a server of its own: its URL and pid."""
    command = [sys.executable, "-m", "omni_actors", "serve", "stub-voice", "--port", "0", "--log-level", "error"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | ALLOCATOR)
    try:
        assert process.stdout is not None
        found = re.search(r"on (http://\S+)", process.stdout.readline())
        if found is None:
            raise RuntimeError("the server did not start")
        yield found[1], process.pid
    finally:
        process.terminate()
        process.wait(60)


def processes(pid: int) -> dict[str, int]:
    """Return the server and its descendants, by name."""
    found = {"server": pid}
    todo = [pid]
    while todo:
        parent = todo.pop()
        for task in Path(f"/proc/{parent}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                comm = Path(f"/proc/{child}/comm").read_text().strip()
                found[comm.replace("python", "warden")] = child
                todo.append(child)
    return found


def rss_kib(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1024


def slope(values: list[tuple[int, float]]) -> float:
    """Return KiB per thousand requests."""
    return 1000 * statistics.linear_regression([x for x, _ in values], [y for _, y in values]).slope


async def not_zero(client: httpx.AsyncClient) -> dict[str, float]:
    """Wait until no request is under way, and return the gauges that are not zero after 10 s."""
    found: dict[str, float] = {}
    with trio.move_on_after(10):
        while True:
            text = (await client.get("/metrics")).text
            found = {name: float(value) for name, value in GAUGES.findall(text) if float(value)}
            found.pop("omni_actors_http_requests_in_flight", None)  # this one
            if not found:
                break
            await trio.sleep(0.02)
    return found


async def run(count: int) -> tuple[dict[str, list[tuple[int, float]]], Counter[str], dict[str, float]]:
    """Return the memory of each process by requests made, the outcomes of the requests, and gauges that did not come
    back to zero."""
    left: dict[str, float] = {}
    with server() as (url, pid):
        clients = Clients(int(url.rpartition(":")[2]), random.Random(1))
        pids = processes(pid)
        memory: dict[str, list[tuple[int, float]]] = {name: [] for name in pids}
        async with httpx.AsyncClient(base_url=url) as client:
            for done in range(0, count + 1, count // ROUNDS):
                left |= await not_zero(client)
                for name, each in pids.items():
                    memory[name].append((done, rss_kib(each)))
                if done < count:
                    await clients.round(count // ROUNDS)
        return memory, clients.outcomes, left


def main() -> None:
    options = arguments(__doc__.splitlines()[0]).parse_args()
    count = 10_000 if options.quick else 20_000
    memory, outcomes, left = trio.run(run, count)
    report = Report(f"Memory over {count} short requests, of which every fifth is left by its client")
    for name, values in memory.items():
        second = [it for it in values if it[0] >= count / 2]
        row = {"process": name, "at first MiB": values[0][1] / 1024}
        row |= {f"{share:.0%} MiB": values[int(share * (len(values) - 1))][1] / 1024 for share in (0.25, 0.5, 0.75, 1)}
        row["KiB / 1000 requests"] = slope(second)
        report.rows.append(row)
        report.aims.append(Aim(f"{name}: KiB per 1000 requests, second half", slope(second), SLOPE_KIB, "<="))
    report.notes.append(f"outcomes: {dict(outcomes)}; not back at zero: {left or 'nothing'}")
    failed = sum(n for name, n in outcomes.items() if name not in ("answered", "left"))
    report.aims.append(Aim("gauges that did not come back to zero", len(left), 0, "<="))
    report.aims.append(Aim("requests with another answer", failed, 0, "<="))
    report.show()
    if options.json:
        report.write(options.json)


if __name__ == "__main__":
    main()
