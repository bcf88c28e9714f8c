"""Requests of an ASGI server, such as Hypercorn, as :class:`HttpExchange`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import trio

from omni_actors.entrypoints.http import Headers
from omni_actors.entrypoints.server.addresses import plain

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

DISCARD_S = 5.0
"""Seconds for which an unread body is read and discarded before its response, so that the client sees the response."""

SILENCE_S = 1.0
"""Seconds without a byte of the body after which discarding ends."""

_PIECES = 4
"""Largest number of pieces of a body (64 KiB each at most) that wait for their reader."""


class AsgiExchange:
    """One request of an ASGI server, over HTTP/1.1 or HTTP/2.

    ASGI servers report a disconnect after every response. Once the last piece of a response is on its way, that report
    is ignored: cancelling the handler while the server still closes the connection would leave the connection open.
    """

    def __init__(self, scope: Message, receive: Receive, send: Send) -> None:
        self.scope = scope
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.query: bytes = scope["query_string"]
        self.headers: Headers = [(name.lower(), value) for name, value in scope["headers"]]
        self.received = self.started = self.finished = False
        # A client that waits for "100 Continue" sends nothing before. Over HTTP/2 data may be under way all the same;
        # Hypercorn does not survive such data after a response.
        self._comes = scope["http_version"].startswith("2") or not any(it[0] == b"expect" for it in self.headers)
        self._receive = receive
        self._send = send
        self._pieces_in, self._pieces = trio.open_memory_channel[bytes](_PIECES)

    @property
    def http_version(self) -> str:
        return str(self.scope["http_version"])

    @property
    def scheme(self) -> str:
        return str(self.scope["scheme"])

    @property
    def target(self) -> bytes:
        return bytes(self.scope["raw_path"])

    @property
    def client(self) -> Any:
        """The client's address as the server gives it, with a mapped IPv4 address written as IPv4."""
        client = self.scope["client"]
        return client and (plain(client[0]), *client[1:])

    @property
    def user(self) -> None:
        return None

    @property
    def server(self) -> Any:
        return self.scope["server"]

    async def run(self, answer: Callable[[AsgiExchange], Awaitable[None]]) -> None:
        """Answer the request, in a scope that is cancelled when the client leaves."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._listen, nursery.cancel_scope)
            await answer(self)
            nursery.cancel_scope.cancel()

    async def _listen(self, leaving: trio.CancelScope) -> None:
        more = True
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                if not self.finished:
                    leaving.cancel()
                return
            if more and (data := message.get("body", b"")):
                await self._pieces_in.send(data)
            if more and not message.get("more_body", False):
                more = False
                self._pieces_in.close()

    async def receive(self) -> bytes:
        self._comes = True
        try:
            return await self._pieces.receive()
        except trio.EndOfChannel:
            self.received = True
            return b""

    async def respond(self, status: int, headers: Headers, body: bytes) -> None:
        if not any(name == b"content-length" for name, _ in headers):
            headers = [*headers, (b"content-length", b"%d" % len(body))]
        await self.start(status, headers)
        await self.finish(body)

    async def start(self, status: int, headers: Headers, first: bytes = b"") -> None:
        await self._discard()
        self.started = True
        if not self.received:
            headers = [*headers, (b"connection", b"close")]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        if first:
            await self.write(first)

    async def write(self, data: bytes) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    def write_now(self, data: bytes) -> bool:
        return False

    async def finish(self, last: bytes = b"") -> None:
        self.finished = True
        await self._send({"type": "http.response.body", "body": last, "more_body": False})

    async def _discard(self) -> None:
        with trio.move_on_after(DISCARD_S):
            while self._comes and not self.received:
                with trio.move_on_after(SILENCE_S) as patience:
                    await self.receive()
                if patience.cancelled_caught:
                    break
