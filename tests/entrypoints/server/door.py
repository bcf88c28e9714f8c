"""Our server in front of two functions, and clients that speak bytes."""

from __future__ import annotations

import math
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import trio

from omni_actors.entrypoints.server import Exchange, Limits, WebSocket, serve
from omni_actors.telemetry.metrics import Metrics

CLOSE = b"\r\nconnection: close\r\n"
PLAIN = [(b"content-type", b"text/plain")]


async def echo(exchange: Exchange) -> None:
    """Answers with what was asked: method, path, query, body."""
    body = b""
    while piece := await exchange.receive():
        body += piece
    said = b"%s %s ?%s %s" % (exchange.method.encode(), exchange.path.encode(), exchange.query, body)
    await exchange.respond(200, PLAIN, said)


async def echo_socket(socket: WebSocket) -> None:
    await socket.accept()
    while True:
        await socket.send(await socket.receive())


@dataclass
class App:
    http: Callable[[Exchange], Awaitable[None]] = echo
    websocket: Callable[[WebSocket], Awaitable[None]] = echo_socket

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        raise NotImplementedError("no lifespan")


@dataclass
class Door:
    """A server, and what it counts. ``stop`` begins its shutdown, ``over`` is set when it has returned."""

    url: str
    metrics: Metrics
    stop: trio.Event = field(default_factory=trio.Event)
    over: trio.Event = field(default_factory=trio.Event)

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.url.partition("://")[2].rpartition(":")
        return host.strip("[]"), int(port)

    async def connect(self) -> trio.SocketStream:
        return await trio.open_tcp_stream(*self.address)

    async def say(self, *pieces: bytes, seconds: float = 5.0) -> bytes:
        """What comes back to bytes, until the server closes."""
        async with await self.connect() as stream:
            for piece in pieces:
                try:
                    await stream.send_all(piece)
                except trio.BrokenResourceError:
                    break
            return await until_end(stream, seconds)

    def value(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(f"omni_actors_{name}", labels) or 0.0

    async def closed(self, reason: str, number: int = 1) -> None:
        """Wait until so many connections have ended for that reason."""
        with trio.fail_after(5):
            while self.value("http_connections_closed_total", reason=reason) < number:
                await trio.sleep(0.002)

    async def settled(self) -> None:
        with trio.fail_after(5):
            while self.value("http_connections_open"):
                await trio.sleep(0.002)


@asynccontextmanager
async def opened(
    app: Any = None,
    *,
    websocket: Callable[[WebSocket], Awaitable[None]] = echo_socket,
    limits: Limits | None = None,
    grace_s: float = 1.0,
    unix_path: str | None = None,
    tls: ssl.SSLContext | None = None,
    probes: Collection[str] = (),
) -> AsyncIterator[Door]:
    """``app`` is an ASGI application, an :class:`App`, or who answers an exchange."""
    if app is None or (callable(app) and not isinstance(app, App) and not hasattr(app, "asgi")):
        app = App(app or echo, websocket)
    metrics = Metrics()
    door = Door("", metrics)

    async def run(*, task_status: trio.TaskStatus[list[str]]) -> None:
        await serve(
            getattr(app, "asgi", app),
            "127.0.0.1",
            0,
            limits=limits,
            metrics=metrics,
            unix_path=unix_path,
            tls=tls,
            probes=probes,
            grace_s=grace_s,
            shutdown=door.stop.wait,
            task_status=task_status,
        )
        door.over.set()

    async with trio.open_nursery() as nursery:
        (door.url,) = await nursery.start(run)
        yield door
        nursery.cancel_scope.cancel()


async def until_end(stream: trio.abc.ReceiveStream, seconds: float = 5.0) -> bytes:
    """Everything until the end; fails when that does not come in time."""
    received = b""
    with trio.fail_after(seconds):
        while part := await stream.receive_some():
            received += part
    return received


async def until(stream: trio.abc.ReceiveStream, end: bytes, seconds: float = 5.0) -> bytes:
    """What comes until it ends so."""
    received = b""
    with trio.fail_after(seconds):
        while not received.endswith(end):
            part = await stream.receive_some()
            assert part, received
            received += part
    return received


def reset(stream: trio.SocketStream) -> None:
    """Close it with a RST."""
    stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    stream.socket.close()


def request(target: str = "/", body: bytes | None = None, *lines: str, method: str = "") -> bytes:
    method = method or ("GET" if body is None else "POST")
    head = [f"{method} {target} HTTP/1.1", "Host: x", *lines]
    if body is not None:
        head.append(f"Content-Length: {len(body)}")
    return "\r\n".join(head).encode() + b"\r\n\r\n" + (body or b"")


class Watched:
    """A handler that says when it began and how it ended."""

    def __init__(self, work: Callable[[Exchange], Awaitable[None]]) -> None:
        self.work = work
        self.begun = trio.Event()
        self.cancelled = trio.Event()
        self.returned = trio.Event()

    async def __call__(self, exchange: Any) -> None:
        self.begun.set()
        try:
            await self.work(exchange)
        except trio.Cancelled:
            self.cancelled.set()
            raise
        self.returned.set()


async def forever(exchange: Exchange) -> None:
    """Never answers."""
    await trio.sleep_forever()


async def stream_forever(exchange: Exchange) -> None:
    """Writes as fast as it may."""
    await exchange.start(200, PLAIN)
    while True:
        await exchange.write(bytes(65536))


async def tick(exchange: Exchange) -> None:
    """Begins an answer, and goes on once in a long while."""
    await exchange.start(200, PLAIN, b"first")
    await trio.sleep_forever()


def frame(opcode: int, payload: bytes = b"", *, fin: bool = True, mask: bool = True, rsv: int = 0) -> bytes:
    """A WebSocket frame as a client sends it."""
    head = bytes([(0x80 if fin else 0) | rsv << 4 | opcode])
    size, bit = len(payload), 0x80 if mask else 0
    if size < 126:
        head += bytes([bit | size])
    elif size < 65536:
        head += bytes([bit | 126]) + struct.pack(">H", size)
    else:
        head += bytes([bit | 127]) + struct.pack(">Q", size)
    if not mask:
        return head + payload
    key = b"\x01\x02\x03\x04"
    return head + key + bytes(byte ^ key[at % 4] for at, byte in enumerate(payload))


UPGRADE = request(
    "/socket",
    None,
    "Connection: Upgrade",
    "Upgrade: websocket",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
)


@dataclass
class Client:
    """A WebSocket client that sends any bytes and reads whole frames."""

    stream: trio.SocketStream
    buffer: bytearray = field(default_factory=bytearray)

    async def send(self, *frames: bytes) -> None:
        await self.stream.send_all(b"".join(frames))

    async def read(self, seconds: float = 5.0) -> tuple[int, bytes]:
        """Opcode and payload of the next frame; ``(-1, b"")`` at the end."""
        with trio.fail_after(seconds):
            while True:
                if (found := self._frame()) is not None:
                    return found
                part = await self.stream.receive_some()
                if not part:
                    return -1, b""
                self.buffer += part

    async def code(self) -> int:
        """The code of a close frame, after which the server's end comes."""
        opcode, payload = await self.read()
        while opcode in (1, 2, 9, 10):
            opcode, payload = await self.read()
        assert opcode == 8, (opcode, payload)
        return int.from_bytes(payload[:2], "big")

    def _frame(self) -> tuple[int, bytes] | None:
        data, size, at = self.buffer, math.inf, 2
        if len(data) >= 2:
            size = data[1]
            if size == 126 and len(data) >= 4:
                size, at = int.from_bytes(data[2:4], "big"), 4
            elif size == 127 and len(data) >= 10:
                size, at = int.from_bytes(data[2:10], "big"), 10
            elif size in (126, 127):
                return None
        if len(data) < at + size:
            return None
        found = data[0] & 15, bytes(data[at : at + int(size)])
        del data[: at + int(size)]
        return found


@asynccontextmanager
async def socket_to(door: Door, *early: bytes) -> AsyncIterator[Client]:
    async with await door.connect() as stream:
        client = Client(stream)
        await client.send(UPGRADE, *early)
        with trio.fail_after(5):
            while b"\r\n\r\n" not in client.buffer:
                part = await stream.receive_some()
                assert part, client.buffer
                client.buffer += part
        assert client.buffer.startswith(b"HTTP/1.1 101 ")
        del client.buffer[: client.buffer.index(b"\r\n\r\n") + 4]
        yield client
