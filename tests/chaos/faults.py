"""The faults. Each is an async function of the server and a source of chance, and leaves the system to mend itself."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Awaitable, Callable

import httpx
import trio
from tests.chaos.server import Served

Fault = Callable[[Served, random.Random], Awaitable[None]]

CONNECTIONS = 50


async def _worker(served: Served, chance: random.Random, *, media: bool = True) -> int | None:
    listed = [it for it in await served.replicas() if it["pid"] and (media or it["stage"] != "media")]
    return chance.choice(listed)["pid"] if listed else None


def _signal(pid: int | None, number: int) -> None:
    if pid is not None:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass


async def kill(served: Served, chance: random.Random) -> None:
    """SIGKILL of one worker."""
    _signal(await _worker(served, chance), signal.SIGKILL)


async def kill_two(served: Served, chance: random.Random) -> None:
    """SIGKILL of two workers at once."""
    one, two = [await _worker(served, chance) for _ in range(2)]
    _signal(one, signal.SIGKILL)
    _signal(two, signal.SIGKILL)


async def terminate(served: Served, chance: random.Random) -> None:
    """SIGTERM of a worker, by somebody who should not."""
    _signal(await _worker(served, chance), signal.SIGTERM)


async def pause(served: Served, chance: random.Random) -> None:
    """SIGSTOP, and SIGCONT before anybody has lost patience."""
    pid = await _worker(served, chance)
    _signal(pid, signal.SIGSTOP)
    await trio.sleep(chance.random())
    _signal(pid, signal.SIGCONT)


async def stop_for_ever(served: Served, chance: random.Random) -> None:
    """SIGSTOP: the worker is alive and stuck."""
    _signal(await _worker(served, chance), signal.SIGSTOP)


async def replace(served: Served, chance: random.Random) -> None:
    """Replace a replica by command."""
    it = chance.choice(await served.replicas())
    command = {"action": "replace", "stage": it["stage"], "index": it["index"], "grace_s": chance.choice((0.1, 5))}
    await served.client.post("/admin/replicas", json=command, timeout=60)


async def resets(served: Served, chance: random.Random) -> None:
    """Many connections, reset at once."""
    for _ in range(CONNECTIONS):
        stream = await trio.open_tcp_stream("127.0.0.1", served.port)
        stream.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        with trio.move_on_after(1):
            await stream.send_all(b"GET /health HTTP/1.1\r\n" * chance.randint(0, 2))
        await stream.aclose()


async def garbage(served: Served, chance: random.Random) -> None:
    """Bytes that are no HTTP, or no longer, or frames that are no WebSocket's."""
    upgrade = (
        b"GET /v1/realtime HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    heads = (
        b"",
        b"GET / HTTP/1.1\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 9999999\r\n\r\n",
        upgrade,
    )
    for _ in range(CONNECTIONS // 5):
        stream = await trio.open_tcp_stream("127.0.0.1", served.port)
        async with stream:
            with trio.move_on_after(2):
                try:
                    await stream.send_all(chance.choice(heads) + chance.randbytes(chance.randint(1, 5000)))
                    await stream.receive_some(1000)
                except trio.BrokenResourceError:
                    continue


async def idle_connections(served: Served, chance: random.Random) -> None:
    """Connections that say nothing, for a while."""
    streams = [await trio.open_tcp_stream("127.0.0.1", served.port) for _ in range(CONNECTIONS)]
    await trio.sleep(chance.random() * 3)
    for stream in streams:
        await stream.aclose()


async def big_bodies(served: Served, chance: random.Random) -> None:
    """A body over the limit, and one that is no JSON."""
    for body in (b"x" * (65 << 20), b'{"messages": ' + b"[" * 100_000):
        try:
            await served.client.post("/v1/chat/completions", content=body, timeout=30)
        except httpx.HTTPError:
            continue


FAULTS: dict[str, tuple[Fault, float]] = {
    "kill -9 of a worker": (kill, 5),
    "kill -9 of two workers": (kill_two, 2),
    "SIGTERM of a worker": (terminate, 1),
    "a worker stopped for a moment": (pause, 3),
    "a worker stopped for ever": (stop_for_ever, 1),
    "a replica replaced by command": (replace, 3),
    "50 connections reset": (resets, 2),
    "garbage on connections": (garbage, 2),
    "50 idle connections": (idle_connections, 1),
    "bodies too large or too deep": (big_bodies, 1),
}
"""Each with how often it comes."""
