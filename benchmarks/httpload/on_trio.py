"""Servers on trio: this project's, directly and with Quart on it, and Quart on Hypercorn.

python -m httpload.on_trio direct|quart|hypercorn PORT
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import AsyncGenerator, Callable
from functools import partial
from typing import Any

import hypercorn.trio
import msgspec
import trio
from hypercorn.config import Config
from quart import Response, request, websocket
from quart_trio import QuartTrio

from httpload import work
from omni_actors.entrypoints.app import Application
from omni_actors.entrypoints.http import Call, Reply
from omni_actors.entrypoints.openai import sse
from omni_actors.entrypoints.openai.bodies import read_json
from omni_actors.entrypoints.openai.fields import decode
from omni_actors.entrypoints.options import ServerOptions
from omni_actors.entrypoints.server import WebSocket, serve
from omni_actors.entrypoints.services import Services
from omni_actors.pipelines.factory import resolve
from omni_actors.telemetry.metrics import Metrics


class Stream:
    """The tokens of one client, of which at most one waits.

    Like a request's record, the stream offers a new token to ``take`` while its reader waits, and wakes the reader with
    a token that ``take`` declines.
    """

    def __init__(self, take: Callable[[bytes], bool]) -> None:
        self.tokens: deque[bytes] = deque()
        self._take = take
        self._reader: trio.lowlevel.Task | None = None

    def put(self, token: bytes) -> None:
        if self._reader is not None and not self.tokens and self._take(token):
            return
        if not self.tokens:
            self.tokens.append(token)
        if self._reader is not None:
            trio.lowlevel.reschedule(self._reader)
            self._reader = None

    async def get(self) -> bytes:
        while not self.tokens:
            self._reader = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._abort)
        return self.tokens.popleft()

    def _abort(self, raise_cancel: object) -> trio.lowlevel.Abort:
        self._reader = None
        return trio.lowlevel.Abort.SUCCEEDED


class Pump:
    """An engine that has a token for every stream whenever all have been looked after."""

    def __init__(self) -> None:
        self._streams: set[Stream] = set()
        self._some = trio.Event()

    async def run(self) -> None:
        while True:
            if not self._streams:
                self._some = trio.Event()
                await self._some.wait()
            for stream in list(self._streams):
                stream.put(work.token())
            await trio.lowlevel.checkpoint()

    async def tokens(self, take: Callable[[bytes], bool]) -> AsyncGenerator[bytes, None]:
        stream = Stream(take)
        self._streams.add(stream)
        self._some.set()
        try:
            while True:
                yield await stream.get()
        finally:
            self._streams.discard(stream)


async def paced() -> AsyncGenerator[bytes, None]:
    at = trio.current_time()
    while True:
        yield work.token()
        at += work.PACE_S
        await trio.sleep_until(at)


def direct(pump: Pump) -> Application:
    """This project's own way: handlers of calls, behind the guard."""

    async def ask(services: Services, call: Call) -> Reply:
        read = await read_json(services, call, ("chat", ("text",), ("text",)))
        body = decode(read.json, work.Ask)
        return Reply(sse.encode(work.answer(body.id, body.input, body.max_tokens)))

    async def saturated(services: Services, call: Call) -> Reply:
        return Reply(pump.tokens(call.write_now), sse.HEADERS, events=True)

    async def slowly(services: Services, call: Call) -> Reply:
        return Reply(paced(), sse.HEADERS, events=True)

    async def echo(services: Services, socket: WebSocket) -> None:
        await socket.accept()
        while True:
            await socket.send(await socket.receive())

    async def push(services: Services, socket: WebSocket) -> None:
        await socket.accept()
        while True:
            for _ in range(work.FRAMES_AT_ONCE):
                await socket.send(work.frame())
            await trio.lowlevel.checkpoint()

    services = Services(None, None, resolve("stub"), ServerOptions(), Metrics())  # type: ignore[arg-type]
    routes = (("POST", "/json", ask), ("POST", "/saturated", saturated), ("POST", "/paced", slowly))
    return Application(services, routes, (("/echo", echo), ("/push", push)))


def add_routes(app: QuartTrio, pump: Pump) -> None:
    """The same as an application on Quart has it."""
    decoder = msgspec.json.Decoder(work.Ask)

    @app.post("/json")
    async def ask() -> Response:
        body = decoder.decode(await request.get_data())
        answer = work.answer(body.id, body.input, body.max_tokens)
        return Response(msgspec.json.encode(answer), content_type="application/json")

    @app.post("/saturated")
    async def saturated() -> Response:
        return _stream(pump.tokens(lambda token: False))

    @app.post("/paced")
    async def slowly() -> Response:
        return _stream(paced())

    @app.websocket("/echo")
    async def echo() -> None:
        while True:
            await websocket.send(await websocket.receive())

    @app.websocket("/push")
    async def push() -> None:
        await websocket.accept()
        while True:
            for _ in range(work.FRAMES_AT_ONCE):
                await websocket.send(work.frame())
            await trio.lowlevel.checkpoint()


def _stream(pieces: AsyncGenerator[bytes, None]) -> Response:
    response = Response(pieces, content_type="text/event-stream")
    response.timeout = None
    return response


async def main(kind: str, port: int) -> None:
    pump = Pump()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pump.run)
        if kind == "hypercorn":
            app = QuartTrio(__name__)
            add_routes(app, pump)
            config = Config()
            config.bind, config.backlog, config.accesslog = [f"127.0.0.1:{port}"], 1024, None
            config.keep_alive_max_requests = 1 << 60
            config.loglevel = "CRITICAL"
            served: Any = partial(hypercorn.trio.serve, app, config)
        else:
            application = direct(pump) if kind == "direct" else Application(direct(pump).services, ())
            add_routes(application.quart, pump)
            served = partial(serve, application, "127.0.0.1", port)
        await served()


if __name__ == "__main__":
    trio.run(main, sys.argv[1], int(sys.argv[2]))
