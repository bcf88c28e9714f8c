"""Exchanges and WebSockets of this server as ASGI 3.0 messages, for an ASGI application."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

import trio

from omni_actors.entrypoints.server.http1 import Exchange
from omni_actors.entrypoints.server.parser import Headers
from omni_actors.entrypoints.server.websocket import SocketClosed, WebSocket

Message = MutableMapping[str, Any]
ASGIApp = Callable[[Any, Callable[[], Awaitable[Any]], Callable[[Any], Awaitable[None]]], Awaitable[None]]

STARTUP_S = 60.0
"""Seconds that an application has for its startup."""

SHUTDOWN_S = 1.0
"""Seconds that an application has for its shutdown."""

log = logging.getLogger("omni_actors.server")

_VERSIONS = {"version": "3.0", "spec_version": "2.4"}


class Adapter:
    """Answers exchanges and WebSockets by an ASGI application.

    The application's task is cancelled when its client leaves; ``http.disconnect`` is therefore only received after a
    finished response.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._state: dict[str, Any] = {}

    async def http(self, exchange: Exchange) -> None:
        cycle = _Cycle(exchange)
        scope: Message = {
            "type": "http",
            "asgi": _VERSIONS,
            "http_version": exchange.http_version,
            "method": exchange.method,
            "scheme": exchange.scheme,
            "path": exchange.path,
            "raw_path": exchange.target,
            "query_string": exchange.query,
            "root_path": "",
            "headers": exchange.headers,
            "client": exchange.client,
            "server": exchange.server,
            "state": self._state.copy(),
            "extensions": {},
        }
        await self._app(scope, cycle.receive, cycle.send)

    async def websocket(self, socket: WebSocket) -> None:
        cycle = _SocketCycle(socket)
        scope: Message = {
            "type": "websocket",
            "asgi": _VERSIONS,
            "http_version": "1.1",
            "scheme": socket.scheme,
            "path": socket.path,
            "raw_path": socket.target,
            "query_string": socket.query,
            "root_path": "",
            "headers": socket.headers,
            "client": socket.client,
            "server": socket.server,
            "subprotocols": socket.subprotocols,
            "state": self._state.copy(),
            "extensions": {"websocket.http.response": {}},
        }
        await self._app(scope, cycle.receive, cycle.send)

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        """Run the application's startup before the block and its shutdown after. An application without a lifespan is
        fine.

        Raises ``RuntimeError``, in a nursery's group, when the startup fails.
        """
        up, down = trio.Event(), trio.Event()
        failures: list[str] = []
        to_app, from_server = trio.open_memory_channel[Message](2)

        async def send(message: Message) -> None:
            kind = message["type"]
            if kind == "lifespan.startup.failed":
                failures.append(message.get("message", ""))
            (up if kind.startswith("lifespan.startup") else down).set()

        async def run() -> None:
            scope = {"type": "lifespan", "asgi": _VERSIONS, "state": self._state}
            try:
                await self._app(scope, from_server.receive, send)
            except Exception:
                if up.is_set():
                    log.exception("the application's lifespan failed")
            finally:
                up.set()
                down.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            to_app.send_nowait({"type": "lifespan.startup"})
            with trio.move_on_after(STARTUP_S):
                await up.wait()
            if not up.is_set():
                failures.append(f"it took more than {STARTUP_S:g} s")
            if failures:
                raise RuntimeError(f"the application could not start: {failures[0]}")
            yield
            to_app.send_nowait({"type": "lifespan.shutdown"})
            with trio.move_on_after(SHUTDOWN_S):
                await down.wait()
            nursery.cancel_scope.cancel()


class _Cycle:
    """One HTTP exchange as ASGI messages."""

    __slots__ = ("_exchange", "_head", "_over", "_whole")

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._head: tuple[int, Headers] | None = None
        self._whole = False
        self._over: trio.Event | None = None

    async def receive(self) -> Message:
        exchange = self._exchange
        if not self._whole:
            data = await exchange.receive()
            self._whole = not data or exchange.received
            return {"type": "http.request", "body": data, "more_body": not self._whole}
        if not exchange.finished:
            self._over = self._over or trio.Event()
            await self._over.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        exchange = self._exchange
        if message["type"] == "http.response.start":
            headers = list(message.get("headers", ()))
            if any(name.lower() == b"content-length" for name, _ in headers):
                self._head = (message["status"], headers)  # leaves with the body, in one write
            else:
                await exchange.start(message["status"], headers)
            return
        body, more = message.get("body", b""), message.get("more_body", False)
        if not exchange.started:
            if self._head is None:
                raise RuntimeError("a body before its head")
            if more:
                await exchange.start(*self._head, body)
            else:
                await exchange.respond(*self._head, body)
        elif more:
            await exchange.write(body)
        else:
            await exchange.finish(body)
        if exchange.finished and self._over is not None:
            self._over.set()


class _SocketCycle:
    """One WebSocket as ASGI messages."""

    __slots__ = ("_body", "_connected", "_head", "_socket")

    def __init__(self, socket: WebSocket) -> None:
        self._socket = socket
        self._connected = False
        self._body = b""
        self._head: tuple[int, Headers] | None = None

    async def receive(self) -> Message:
        if not self._connected:
            self._connected = True
            return {"type": "websocket.connect"}
        try:
            data = await self._socket.receive()
        except SocketClosed as closed:
            return {"type": "websocket.disconnect", "code": closed.code, "reason": closed.reason}
        if isinstance(data, str):
            return {"type": "websocket.receive", "bytes": None, "text": data}
        return {"type": "websocket.receive", "bytes": data, "text": None}

    async def send(self, message: Message) -> None:
        socket = self._socket
        kind = message["type"]
        if kind == "websocket.accept":
            await socket.accept(list(message.get("headers", ())), message.get("subprotocol"))
        elif kind == "websocket.send":
            data = message.get("bytes")
            await socket.send(message["text"] if data is None else data)
        elif kind == "websocket.close":
            if socket.accepted:
                await socket.close(message.get("code") or 1000, message.get("reason") or "")
            else:
                await socket.reject(403, [])
        elif kind == "websocket.http.response.start":
            self._head = (message["status"], list(message.get("headers", ())))
        elif kind == "websocket.http.response.body":
            if self._head is None:
                raise RuntimeError("a body before its head")
            self._body += message.get("body", b"")
            if not message.get("more_body", False):
                await socket.reject(*self._head, self._body)
