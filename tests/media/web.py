"""Small web servers that answer as a test says, and names that lead where a test says."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import trio

Answer = Callable[[trio.SocketStream, str], Awaitable[None]]


@dataclass
class Web:
    """A server. ``asked`` are the heads of the requests that it got, ``connections`` counts everybody who came."""

    port: int = 0
    asked: list[str] = field(default_factory=list)
    open: int = 0
    connections: int = 0

    def url(self, path: str = "/", host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"


@asynccontextmanager
async def web(answer: Answer | bytes) -> AsyncIterator[Web]:
    """On 127.0.0.1: ``answer`` writes to each connection, given the request's path; or it is the whole of what is
    written. Then the connection is closed."""
    it = Web()

    async def handle(stream: trio.SocketStream) -> None:
        it.open += 1
        it.connections += 1
        try:
            head = b""
            while b"\r\n\r\n" not in head:
                if not (data := await stream.receive_some(4096)):
                    return
                head += data
            it.asked.append(head.decode("latin-1"))
            if isinstance(answer, bytes):
                await stream.send_all(answer)
            else:
                await answer(stream, head.split(b" ")[1].decode())
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            it.open -= 1
            await trio.aclose_forcefully(stream)

    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        it.port = listeners[0].socket.getsockname()[1]
        nursery.start_soon(trio.serve_listeners, handle, listeners)
        yield it
        nursery.cancel_scope.cancel()


def ok(body: bytes, content_type: str | None = "image/png", **headers: str) -> bytes:
    """A whole answer."""
    lines = ["HTTP/1.1 200 OK", f"Content-Length: {len(body)}"]
    if content_type is not None:
        lines.append(f"Content-Type: {content_type}")
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def moved(to: str, status: int = 302) -> bytes:
    return f"HTTP/1.1 {status} Moved\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n".encode()
