"""FastAPI on uvicorn, with uvloop and httptools. ``/json`` has a Pydantic model, ``/raw`` decodes the body itself.

python -m httpload.on_asyncio PORT
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import uvicorn
from fastapi import FastAPI, Request, Response, WebSocket
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

from httpload import work


class Ask(BaseModel):
    id: str
    input: str
    max_tokens: int = 16


REST_AFTER = 64
"""Rounds of the pump."""


class Pump:
    """A source of tokens like the one on trio, with a pause now and again: a turn of the loop without tokens.

    Without the pause, anyio never cancels a task whose next token is always ready. (Starlette uses anyio to end the
    stream of a client that has left.)
    """

    def __init__(self) -> None:
        self._streams: set[asyncio.Queue[bytes]] = set()
        self._some = asyncio.Event()

    async def run(self) -> None:
        for turn in itertools.count(1):
            if not self._streams:
                self._some.clear()
                await self._some.wait()
            if turn % REST_AFTER == 0:
                await asyncio.sleep(0)
            for stream in list(self._streams):
                if stream.empty():
                    stream.put_nowait(work.token())
            await asyncio.sleep(0)

    async def tokens(self) -> AsyncGenerator[bytes, None]:
        stream: asyncio.Queue[bytes] = asyncio.Queue()
        self._streams.add(stream)
        self._some.set()
        try:
            while True:
                yield await stream.get()
        finally:
            self._streams.discard(stream)


async def paced() -> AsyncGenerator[bytes, None]:
    loop = asyncio.get_running_loop()
    at = loop.time()
    while True:
        yield work.token()
        at += work.PACE_S
        await asyncio.sleep(at - loop.time())


def main(port: int) -> None:
    pump = Pump()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        running = asyncio.create_task(pump.run())
        yield
        running.cancel()

    app = FastAPI(lifespan=lifespan)
    decoder = msgspec.json.Decoder(work.Ask)

    @app.post("/json")
    async def ask(body: Ask) -> dict[str, object]:
        return work.answer(body.id, body.input, body.max_tokens)

    @app.post("/raw")
    async def raw(request: Request) -> Response:
        body = decoder.decode(await request.body())
        answer = work.answer(body.id, body.input, body.max_tokens)
        return Response(msgspec.json.encode(answer), media_type="application/json")

    @app.post("/saturated")
    async def saturated() -> StreamingResponse:
        return StreamingResponse(pump.tokens(), media_type="text/event-stream")

    @app.post("/paced")
    async def slowly() -> StreamingResponse:
        return StreamingResponse(paced(), media_type="text/event-stream")

    @app.websocket("/echo")
    async def echo(socket: WebSocket) -> None:
        await socket.accept()
        while True:
            await socket.send_bytes(await socket.receive_bytes())

    @app.websocket("/push")
    async def push(socket: WebSocket) -> None:
        await socket.accept()
        while True:
            for _ in range(work.FRAMES_AT_ONCE):
                await socket.send_bytes(work.frame())
            await asyncio.sleep(0)

    uvicorn.run(
        app,
        host="127.0.0.1",
        port=port,
        loop="uvloop",
        http="httptools",
        ws_per_message_deflate=False,
        log_level="critical",
        access_log=False,
    )


if __name__ == "__main__":
    main(int(sys.argv[1]))
