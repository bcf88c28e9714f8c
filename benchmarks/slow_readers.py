"""The effect of clients that misbehave: the cost of 500 that never read and 500 that reset for 16 good streams.

``omni-actors serve stub-voice`` with a writer that writes a word every 50 ms to each request. This process reads the
good streams and notes the arrival of each event; the misbehaving clients are another process's. A slow reader asks for
a stream without end, with a small receive buffer, and reads nothing. A resetting client reads the first event and
resets.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import trio

from report import Aim, Report, arguments, percentile
from rolling import server

GOOD = 16
STEP_S = 0.05
ENDLESS = 1_000_000
RESET = b"\x01\0\0\0\0\0\0\0"


def asks(words: int) -> bytes:
    body = json.dumps(
        {
            "model": "stub-voice",
            "messages": [{"role": "user", "content": "Say something."}],
            "max_tokens": words,
            "stream": True,
        }
    )
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    return (head + body).encode()


async def events(stream: trio.SocketStream) -> AsyncIterator[float]:
    """Return the arrival time of each event."""
    async for data in stream:
        now = time.perf_counter()
        for _ in range(data.count(b"data: ")):
            yield now


async def good(port: int, seconds: float, gaps: list[float], failed: list[str]) -> None:
    """Run one stream after another, for so long, and return the seconds between two pieces of each."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        async with stream:
            await stream.send_all(asks(100))
            last, count = 0.0, 0
            async for now in events(stream):
                count += 1
                if last and now > last:
                    gaps.append(now - last)
                last = now
                if count == 101 or now > end:  # the role, and a hundred words
                    break
            if count < 101 and last < end:
                failed.append(f"a stream ended after {count} events")


async def measure(port: int, seconds: float) -> tuple[list[float], list[str]]:
    gaps: list[float] = []
    failed: list[str] = []
    async with trio.open_nursery() as nursery:
        for _ in range(GOOD):
            nursery.start_soon(good, port, seconds, gaps, failed)
    return gaps, failed


# --- those that misbehave, in a process of their own -----------------------------------------------------------------


async def slow(port: int) -> None:
    with trio.socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        await sock.connect(("127.0.0.1", port))
        await sock.send(asks(ENDLESS))
        await trio.sleep_forever()


async def reset(port: int) -> None:
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    async with stream:
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        await stream.send_all(asks(ENDLESS))
        async for _ in events(stream):
            return


async def misbehave(port: int, readers: int, resets: int, seconds: float) -> None:
    async with trio.open_nursery() as nursery:
        for _ in range(readers):
            nursery.start_soon(slow, port)
        print("begun", flush=True)
        begun = trio.current_time()
        for i in range(resets):
            await trio.sleep_until(begun + i * seconds / resets)
            nursery.start_soon(reset, port)
        await trio.sleep_until(begun + seconds)
        nursery.cancel_scope.cancel()


def main() -> None:
    if sys.argv[1:2] == ["misbehave"]:
        at, readers, resets, for_s = sys.argv[2:]
        trio.run(misbehave, int(at), int(readers), int(resets), float(for_s))
        return
    options = arguments(__doc__.splitlines()[0]).parse_args()
    many, seconds = (200, 8.0) if options.quick else (500, 25.0)
    settings = (f"stages.writer.options.step_s={STEP_S}", "limits.max_inflight=2048", "limits.drain_s=2")
    report = Report(f"{GOOD} good streams beside {many} slow readers and {many} resets")
    with server(*settings) as url:
        port = int(url.rpartition(":")[2])
        trio.run(measure, port, 2.0)  # warm
        alone, failed_alone = trio.run(measure, port, seconds)
        command = [sys.executable, __file__, "misbehave", str(port), str(many), str(many), str(seconds)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as bad:
            assert bad.stdout is not None
            bad.stdout.readline()
            beside, failed_beside = trio.run(measure, port, seconds)
            bad.wait(60)
        after, failed_after = trio.run(measure, port, min(seconds, 5.0))
    rows: dict[str, tuple[list[float], list[str]]] = {
        "alone": (alone, failed_alone),
        "beside them": (beside, failed_beside),
        "afterwards": (after, failed_after),
    }
    for name, (gaps, failed) in rows.items():
        row: dict[str, Any] = {"good streams": name, "pieces": len(gaps), "failed": len(failed)}
        report.rows.append(row | {f"gap p{it} ms": 1000 * percentile(gaps, it / 100) for it in (50, 90, 99)})
    ratio = percentile(beside, 0.99) / percentile(alone, 0.99)
    report.aims = [
        Aim("inter-chunk p99 beside misbehaving clients / alone", ratio, 1.5, "<="),
        Aim("good streams that failed", len(failed_alone) + len(failed_beside) + len(failed_after), 0, "<="),
    ]
    report.show()
    if options.json:
        report.write(options.json)


if __name__ == "__main__":
    main()
