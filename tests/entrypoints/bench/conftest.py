"""A small HTTP server that answers as it is told, with known delays, over a real socket."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import trio

Script = list[tuple[float, bytes | None]]
"""(seconds to wait, bytes to send as one chunk of the body); ``None`` closes the connection there."""


def event(value: Any) -> bytes:
    return b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n"


def text_chunk(text: str, finish: str | None = None) -> bytes:
    return event({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}]})


def audio_chunk(seconds: float, transcript: str = "") -> bytes:
    data = base64.b64encode(bytes(2 * round(seconds * 24000))).decode()
    return event({"choices": [{"index": 0, "delta": {"audio": {"data": data, "transcript": transcript}}}]})


def usage_chunk(prompt: int, completion: int, total: int | None = None) -> bytes:
    total = prompt + completion if total is None else total
    usage = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total}
    return event({"choices": [], "usage": usage})


DONE = event(b"[DONE]")


@dataclass
class Server:
    """``script`` answers each POST, ``close_after`` closes its connection then, without saying so before.
    ``bodies`` are those that came, ``in_flight_max`` how many at once."""

    script: Callable[[dict[str, Any]], Script]
    content_type: bytes = b"text/event-stream"
    status: bytes = b"200 OK"
    close_after: bool = False
    port: int = 0
    bodies: list[dict[str, Any]] = field(default_factory=list)
    connections: int = 0
    in_flight: int = 0
    in_flight_max: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def handle(self, stream: trio.SocketStream) -> None:
        self.connections += 1
        rest = b""
        try:
            while True:
                while b"\r\n\r\n" not in rest:
                    if not (more := await stream.receive_some()):
                        return
                    rest += more
                head, rest = rest.split(b"\r\n\r\n", 1)
                length = next(int(h.split(b":")[1]) for h in head.split(b"\r\n") if h.lower().startswith(b"content-l"))
                while len(rest) < length:
                    rest += await stream.receive_some()
                body, rest = rest[:length], rest[length:]
                if not await self.answer(stream, head, body):
                    return
        except trio.BrokenResourceError:
            return
        finally:
            await trio.aclose_forcefully(stream)

    async def answer(self, stream: trio.SocketStream, head: bytes, body: bytes) -> bool:
        if head.startswith(b"GET /v1/models "):
            models = json.dumps({"data": [{"id": "first-model"}, {"id": "second-model"}]}).encode()
            await stream.send_all(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(models), models))
            return True
        self.bodies.append(json.loads(body))
        self.in_flight += 1
        self.in_flight_max = max(self.in_flight_max, self.in_flight)
        try:
            await stream.send_all(
                b"HTTP/1.1 %b\r\ncontent-type: %b\r\ntransfer-encoding: chunked\r\n\r\n"
                % (self.status, self.content_type)
            )
            for delay, part in self.script(self.bodies[-1]):
                await trio.sleep(delay)
                if part is None:
                    await stream.aclose()
                    return False
                await stream.send_all(b"%x\r\n%b\r\n" % (len(part), part))
        finally:
            self.in_flight -= 1
        await stream.send_all(b"0\r\n\r\n")
        return not self.close_after


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    """``serve(script, …)`` starts a :class:`Server` in a thread of its own; all end with the test."""
    stops: list[Callable[[], None]] = []

    def start(script: Callable[[dict[str, Any]], Script] | Script, **options: Any) -> Server:
        server = Server(script if callable(script) else lambda body: script, **options)
        ready = threading.Event()
        scope = trio.CancelScope()
        tokens: list[trio.lowlevel.TrioToken] = []

        async def main() -> None:
            with scope:
                async with trio.open_nursery() as nursery:
                    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
                    server.port = listeners[0].socket.getsockname()[1]
                    tokens.append(trio.lowlevel.current_trio_token())
                    nursery.start_soon(trio.serve_listeners, server.handle, listeners)
                    ready.set()

        thread = threading.Thread(target=trio.run, args=(main,))
        thread.start()
        assert ready.wait(10)

        def stop() -> None:
            tokens[0].run_sync_soon(scope.cancel)
            thread.join(10)

        stops.append(stop)
        return server

    yield start
    for stop in stops:
        stop()


@pytest.fixture
def sse() -> Any:
    """The pieces that scripts are written with."""
    return SimpleNamespace(event=event, text=text_chunk, audio=audio_chunk, usage=usage_chunk, done=DONE)
