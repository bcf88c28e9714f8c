"""One connection: its requests, one after the other, and how it ends."""

from __future__ import annotations

import logging
import math

import trio

from omni_actors.entrypoints.openai.errors import error_body, http_error
from omni_actors.entrypoints.server.http1 import Exchange, error_response
from omni_actors.entrypoints.server.parser import BadRequest, RequestParser
from omni_actors.entrypoints.server.server import Reason, Server
from omni_actors.entrypoints.server.transport import Stalled, TlsTransport, Transport
from omni_actors.entrypoints.server.websocket import WebSocket

CLOSED_S = 1.0
"""What a client gets to close its connection when it has closed its WebSocket, or the server drains."""

SPARED_S = 1.0
"""What a client gets for the head of a request, or its TLS before that, before it has to make way for others: what it
sends is on its way, unless it is slow or silent on purpose."""

NEEDS_TLS = "TLS is spoken here: https:// (or wss://) in place of http:// (or ws://)."

log = logging.getLogger("omni_actors.server")


class Connection:
    """A client's connection, in one task.

    Its scope is cancelled when the client leaves or has to: that ends whatever answers it, wherever it is. ``reason``
    says then why. Nothing is read ahead: while a request is being answered, what follows it waits in the kernel, and
    at most one segment of it here.
    """

    __slots__ = (
        "_exchange",
        "_late",
        "_lingering",
        "_parser",
        "_pending",
        "_refusal",
        "_served",
        "address",
        "client",
        "idle",
        "idle_until",
        "reason",
        "scope",
        "server",
        "socket",
        "spared_until",
        "transport",
    )

    def __init__(
        self, server: Server, transport: Transport, client: tuple[str, int] | None, address: tuple[str, int | None]
    ) -> None:
        self.server = server
        self.transport = transport
        self.address = address
        """Where its listener listens: host and port, or the path of a unix socket."""
        self.client = client
        self.idle = False
        self.idle_until = math.inf
        """Trio time at which :meth:`Server.sweep` ends it, if it is idle then."""
        self.reason: Reason | None = None
        self.scope = trio.CancelScope()
        self.socket: WebSocket | None = None
        self.spared_until = trio.current_time() + SPARED_S
        """Trio time from which :meth:`Server.shed` may end it."""
        self._exchange: Exchange | None = None
        self._late: Reason = "idle"
        self._lingering: trio.CancelScope | None = None
        self._refusal: BadRequest | None = None
        self._parser = RequestParser(server.limits)
        self._pending = b""
        self._served = False

    async def run(self) -> None:
        """Serve the connection until it is over. Raises nothing, cancellation from outside excepted."""
        departures = self.server.departures
        try:
            departures.watch(self.transport.socket, self.depart)
            with self.scope:
                if await self._handshake():
                    await self._requests()
            await self._part()
        except Exception:
            self.reason = "failed"
            log.exception("a connection failed")
        finally:
            if self.reason is None:
                self._cut_short()
            departures.forget(self.transport.socket)
            self.close(self.reason or "failed", reset=self._is_cut())

    def close(self, reason: Reason, *, reset: bool) -> None:
        """At the end of :meth:`run`, or instead of it."""
        log.debug("connection of %s: %s", self.client, reason)
        self.transport.close(reset=reset)
        self.server.remove(self, reason)

    # --- ends

    def end(self, reason: Reason) -> None:
        """Cancel what the connection is at, and close it."""
        if self.reason is None:
            self.reason = reason
        self.scope.cancel()

    def end_after(self, seconds: float, reason: Reason) -> None:
        """:meth:`end` it then, unless another time is set before (``math.inf`` is never)."""
        self._late = reason
        self.scope.deadline = trio.current_time() + seconds

    def depart(self) -> None:
        """The client has closed its end, or reset the connection."""
        if self.idle:
            self.end("done")
        elif self.socket is None or not self.socket.departs():
            self.end("client_left")

    def drain(self) -> None:
        if self._lingering is not None:
            self._lingering.deadline = min(self._lingering.deadline, trio.current_time() + CLOSED_S)
        if self.idle or self._reads_head:
            self.end("drained")
        elif self.socket is not None:
            self.socket.drain()
        elif self._exchange is not None and not self._parser.complete and not self._exchange.started:
            self._refusal = BadRequest(503, "The server is shutting down.")  # it still comes
            self.end("drained")
        elif not self._served:  # at a TLS handshake
            self.end_after(CLOSED_S, "drained")

    async def _part(self) -> None:
        """Say what is left to say, and let the client read it: a socket that is closed with unread bytes in it resets
        the connection, and with it an answer that is under way."""
        if self.scope.cancelled_caught and self.reason is None:
            self.reason = self._late
            if self.reason == "head_timeout":
                self._refusal = BadRequest(408, "The request's head did not arrive in time.")
        if self.reason == "drained" and (self._reads_head or self.transport.has_bytes()):
            # a request that crossed the drain
            self._refusal = BadRequest(503, "The server is shutting down.")
        last = b""
        answered = self.transport.torn or (self._exchange is not None and self._exchange.started)
        if self._refusal is not None and not answered:
            last = error_response(self._refusal)
        elif self.reason not in ("done", "bad_request") or self._is_cut() or self._has_all():
            return
        with self._linger():
            try:
                await self.transport.send(last)
                await self.transport.end_writing()
                while await self.transport.receive():
                    pass
            except (trio.BrokenResourceError, Stalled):
                return

    def _linger(self) -> trio.CancelScope:
        """For what is waited for behind an answer."""
        linger_s = self.server.limits.linger_s
        if self.server.draining or (self.socket is not None and self.socket.both_closed):
            linger_s = min(linger_s, CLOSED_S)
        self._lingering = trio.move_on_after(linger_s)
        return self._lingering

    @property
    def asks(self) -> bool:
        """Whether its request's head, or its TLS before that, has come in part: that may be all that ever comes."""
        return self.reason in (None, "shed") and (self._reads_head or not self._served)

    @property
    def _reads_head(self) -> bool:
        """Whether a part of a request's head has come, and no more."""
        return self._served and not self.idle and self._exchange is None and self._refusal is None

    def _has_all(self) -> bool:
        """Whether the client has said its last word, and it is read, and it has all there is to tell it."""
        parser, transport = self._parser, self.transport
        over = parser.complete and not parser.keep_alive and not self._pending
        return over and not transport.says_end and not transport.has_bytes()

    def _cut_short(self) -> None:
        """The server's end, and nothing may be waited for."""
        self.reason = "shutdown"
        if self.socket is not None:
            self.socket.say_goodbye()
        elif self._exchange is not None and not self._exchange.started:
            self.transport.send_last(error_response(BadRequest(503, "The server is shutting down.")))

    def _is_cut(self) -> bool:
        """Whether the client has to see an error where it would take the connection's end for the answer's."""
        if self.transport.torn or self.reason == "write_stalled":
            return True
        exchange = self._exchange
        return exchange is not None and exchange.started and not exchange.finished and exchange.ends_with_connection

    # --- bytes

    async def send(self, data: bytes) -> None:
        """Cancelled when the client is gone, or stops reading; or an earlier send was cancelled half-way."""
        try:
            if self.transport.torn:
                self.end("unfinished")
            else:
                await self.transport.send(data)
        except trio.BrokenResourceError:
            self.end("client_left")
        except Stalled:
            self.end("write_stalled")
        if self.transport.torn:
            await trio.lowlevel.checkpoint()

    async def fill(self) -> None:
        """Read on in the present request. Cancelled when the client is gone, or breaks the protocol."""
        if self._pending:  # without waiting
            await trio.lowlevel.checkpoint()
        data = self._pending or await self.transport.receive()
        self._pending = b""
        if not data:
            self.end("client_left")
        else:
            try:
                self._pending = self._parser.feed(data)
            except BadRequest as error:
                self._refusal = error
                self.end("bad_request")
            else:
                return
        await trio.lowlevel.checkpoint()

    async def _handshake(self) -> bool:
        server, transport = self.server, self.transport
        if not isinstance(transport, TlsTransport):
            return True
        if server.draining:
            self.end_after(CLOSED_S, "drained")
        with trio.move_on_after(server.limits.handshake_s):
            try:
                self.idle = True
                self._queue()
                first = await transport.first_byte()
                self.idle = False
                if not first:
                    self.reason = "done"
                    return False
                if (plain := await transport.plain_http(first)) is not None:
                    self.transport = plain
                    self.reason, self._refusal = "plain_http", BadRequest(400, NEEDS_TLS)
                    return False
                self._queue()
                await transport.handshake(server.handshakes)
                if server.draining:
                    self.reason, self._refusal = "drained", BadRequest(503, "The server is shutting down.")
                return not server.draining
            except trio.BrokenResourceError:
                self.reason = "handshake_failed"
                return False
        self.reason = "handshake_timeout"
        return False

    # --- requests

    def _queue(self) -> None:
        """Nothing is done for it from now on: whoever waits for a place may have this one's, behind those of which that
        is so for longer."""
        connections = self.server.connections
        connections[self] = connections.pop(self)
        if self.server.freed:
            self.server.freed.unpark_all()

    async def _requests(self) -> None:
        while await self._head():
            exchange = self._exchange = Exchange(self, self._parser)
            if self._parser.upgrade:
                await self._websocket(exchange)
                return
            await self._answer(exchange)
            if self.reason is not None:
                return
            if exchange.keep_alive and not self._parser.complete:
                await self._discard()
            if not (exchange.keep_alive and self._parser.complete):
                self.reason = "done"
                return
            self._exchange = None
            self._parser.next()

    async def _head(self) -> bool:
        """Read a request's head. ``False`` when there is none."""
        parser = self._parser
        data = self._pending.lstrip(b"\r\n")
        if not data:
            if self.server.draining:
                self.reason = "drained"
                return False
            data = await self._first_bytes()
            if not data:
                return False
        late = False
        while True:
            try:
                self._pending = parser.feed(data)
            except BadRequest as error:
                self.reason, self._refusal = "bad_request", error
                return False
            if parser.head_complete:
                if self.scope.deadline != math.inf:
                    self.scope.deadline = math.inf
                return True
            if not late:
                late = True
                self.spared_until = trio.current_time() + SPARED_S
                self._queue()
                self.end_after(self.server.limits.head_s, "head_timeout")
            data = self._pending or await self.transport.receive()
            if not data:
                self.reason = "client_left"
                return False

    async def _first_bytes(self) -> bytes:
        """Of the next request; ``b""`` when the client closes instead."""
        self.idle = True
        limits = self.server.limits
        if self._served:
            self.idle_until = trio.current_time() + limits.keep_alive_s
            self.spared_until = -math.inf
        else:
            self.end_after(limits.head_s, "idle")
        self._served = True
        self._queue()
        data = b""
        while not data:
            data = await self.transport.receive()
            if not data:
                self.reason = "done"
                return b""
            data = data.lstrip(b"\r\n")  # some clients send an empty line behind a body
        self.idle = False
        return data

    async def _answer(self, exchange: Exchange) -> None:
        server = self.server
        failure: BaseException | None = None
        try:
            if server.draining:
                await _refuse(exchange, 503, "The server is shutting down.")
            else:
                await server.application.http(exchange)
        except Exception as error:
            failure = error
        except BaseExceptionGroup as group:
            failure, rest = group.split(Exception)
            if rest is not None:
                if failure is not None:
                    log.debug("a handler failed while it was cancelled", exc_info=failure)
                raise rest from None
        if failure is not None:
            log.error("unexpected failure of %s %r", exchange.method, exchange.path, exc_info=failure)
        if not exchange.started:
            await _refuse(exchange, 500, "Internal error.")
        elif not exchange.finished or self.transport.torn:
            self.reason = "unfinished"

    async def _discard(self) -> None:
        """What is left of a request's body behind its answer."""
        with self._linger():
            while not self._parser.complete:
                self._parser.body.clear()
                await self.fill()

    async def _websocket(self, exchange: Exchange) -> None:
        early, self._pending = self._pending, b""
        try:
            self.socket = socket = WebSocket(self, exchange, early)
        except BadRequest as error:
            self.reason, self._refusal = "bad_request", error
            return
        failed = False
        with self.server.metrics.websocket():
            try:
                await socket.serve(self.server.application.websocket)
            except Exception as error:
                failed = True
                log.error("unexpected failure of WebSocket %r", exchange.path, exc_info=error)
            except BaseExceptionGroup as group:
                _, rest = group.split(Exception)
                if rest is not None:
                    raise rest from None
            if not exchange.started:
                await _refuse(exchange, 500 if failed else 403, "Internal error." if failed else "Not accepted.")
            else:
                await socket.part(1011 if failed else 1000)
        if self.reason is None:
            self.reason = "done"


async def _refuse(exchange: Exchange, status: int, message: str) -> None:
    exchange.keep_alive = False
    body = error_body(http_error(status, message))
    await exchange.respond(status, [(b"content-type", b"application/json")], body)
