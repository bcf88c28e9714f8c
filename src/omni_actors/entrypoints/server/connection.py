"""One connection: its requests, one after the other, and how it ends."""

from __future__ import annotations

import logging
import math

import trio

from omni_actors.entrypoints.server.dispatch import DRAINING, answer, serve_socket
from omni_actors.entrypoints.server.handshake import shake_hands
from omni_actors.entrypoints.server.http1 import Exchange, error_response
from omni_actors.entrypoints.server.minimum_rate import MinimumRate
from omni_actors.entrypoints.server.parser import BadRequest, RequestParser
from omni_actors.entrypoints.server.server import CLOSED_S, Reason, Server
from omni_actors.entrypoints.server.transport import Stalled, TlsTransport, Transport
from omni_actors.entrypoints.server.websocket import WebSocket

SPARED_S = 1.0
"""What a client gets for the head of a request, or its TLS before that, before it has to make way for others: what it
sends is on its way, unless it is slow or silent on purpose."""

PATIENCE_S = 5.0
"""How long a body may be behind the pace of :attr:`Limits.crowded_body_rate` before it has to make way for others."""

CROWDED = "All connections are taken: try again."
TOO_SLOW = "All connections are taken, and the request's body came too slowly."

log = logging.getLogger("omni_actors.server")


class Connection:
    """A client's connection, in one task.

    Its scope is cancelled when the client leaves or has to: that ends whatever answers it, wherever it is. ``reason``
    says then why. Nothing is read ahead: while a request is being answered, what follows it waits in the kernel, and
    at most one segment of it here.
    """

    __slots__ = (
        "_exchange",
        "_hurried",
        "_late",
        "_lingering",
        "_pace",
        "_parser",
        "_pending",
        "_served",
        "address",
        "client",
        "idle",
        "idle_until",
        "probed",
        "reason",
        "refusal",
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
        self.probed = False
        """Whether a probe is being answered that did not wait for a place."""
        self.reason: Reason | None = None
        self.scope = trio.CancelScope()
        self.socket: WebSocket | None = None
        self.spared_until = trio.current_time() + SPARED_S
        """Trio time from which :meth:`Server.shed` may end it, while it is idle, asks or lingers."""
        self._exchange: Exchange | None = None
        self._hurried = False
        self._late: Reason = "idle"
        self._lingering: trio.CancelScope | None = None
        self._pace: MinimumRate | None = None
        self.refusal: BadRequest | None = None
        self._parser = RequestParser(server.limits)
        self._pending = b""
        self._served = False

    async def run(self) -> None:
        """Serve the connection until it is over. Raises nothing, cancellation from outside excepted."""
        disconnects = self.server.disconnects
        try:
            disconnects.watch(self.transport.socket, self.depart)
            with self.scope:
                if not isinstance(self.transport, TlsTransport) or await shake_hands(self, self.transport):
                    await self._requests()
            await self._part()
        except Exception:
            self.reason = "failed"
            log.exception("a connection failed")
        finally:
            if self.reason is None:
                self._cut_short()
            disconnects.forget(self.transport.socket)
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

    def make_way(self, reason: Reason) -> None:
        """:meth:`end` it for another connection: its client is told as far as that takes no time."""
        self._hurried = True
        if reason == "shed" and self._lingering is None and self._body_comes:
            self.refusal = BadRequest(408, TOO_SLOW)
        if self._lingering is not None:
            self._lingering.cancel()
        self.end(reason)

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
        elif self._exchange is not None and not self._exchange.started and self._is_held_up:
            self.refusal = BadRequest(503, DRAINING)  # it still comes
            self.end("drained")
        elif not self._served:  # at a TLS handshake
            self.end_after(CLOSED_S, "drained")

    async def _part(self) -> None:
        """Say what is left to say, and let the client read it: a socket that is closed with unread bytes in it resets
        the connection, and with it an answer that is under way."""
        if self.scope.cancelled_caught and self.reason is None:
            self.reason = self._late
            if self.reason == "head_timeout":
                self.refusal = BadRequest(408, "The request's head did not arrive in time.")
        if self.reason == "crowded" and self._exchange is not None:
            self.refusal = BadRequest(503, CROWDED)
        if self.reason == "drained" and (self._reads_head or self.transport.has_bytes()):
            # a request that crossed the drain
            self.refusal = BadRequest(503, DRAINING)
        last = b""
        answered = self.transport.torn or (self._exchange is not None and self._exchange.started)
        if self.refusal is not None and not answered:
            last = error_response(self.refusal)
        elif self.reason not in ("done", "bad_request") or self._is_cut() or self._has_all():
            return
        if self._hurried:
            self.transport.send_last(last)
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
        self.spared_until = trio.current_time() + SPARED_S
        self.server.may_shed(self.spared_until)
        return self._lingering

    @property
    def asks(self) -> bool:
        """Whether its request's head, or its TLS before that, has come in part: that may be all that ever comes."""
        return self.reason in (None, "shed") and (self._reads_head or not self._served)

    @property
    def lingers(self) -> bool:
        """Whether its answer has been sent, and only the rest of what its client says is waited for."""
        return self._lingering is not None

    @property
    def left_s(self) -> float | None:
        """For how long it may go on as it does while connections are taken; below zero it has to make way. It is
        ``None`` unless it lingers, or waits for a body that nobody has begun to answer."""
        if self._lingering is not None:
            return self.spared_until - trio.current_time()
        return self._pace.left_s if self._pace is not None and self._body_comes else None

    @property
    def _body_comes(self) -> bool:
        exchange = self._exchange
        return self._pace is not None and self._pace.waits and not (exchange is not None and exchange.started)

    @property
    def _is_held_up(self) -> bool:
        """Whether its request's body still comes, or it waits for a place."""
        return not self._parser.complete or (self in self.server.waiting and not self.probed)

    @property
    def _reads_head(self) -> bool:
        """Whether a part of a request's head has come, and no more."""
        return self._served and not self.idle and self._exchange is None and self.refusal is None

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
            self.transport.send_last(error_response(BadRequest(503, DRAINING)))

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
            data, self._pending = self._pending, b""
        else:
            data = await self._more()
        if not data:
            self.end("client_left")
        else:
            try:
                self._pending = self._parser.feed(data)
            except BadRequest as error:
                self.refusal = error
                self.end("bad_request")
            else:
                return
        await trio.lowlevel.checkpoint()

    async def _more(self) -> bytes:
        """More of the body, which has to come at some pace where connections are taken."""
        pace = self._pace = self._pace or MinimumRate(self.server.limits.crowded_body_rate, PATIENCE_S)
        self.server.may_shed(trio.current_time() + pace.begin())
        data = await self.transport.receive()
        pace.came(len(data))
        return data

    # --- requests

    async def _requests(self) -> None:
        while await self._head():
            exchange = self._exchange = Exchange(self, self._parser)
            if (place := self.server.waiting.get(self)) is not None:
                await self._wait_for(place, exchange)
            if self._parser.upgrade:
                await self._websocket(exchange)
                return
            await answer(self.server, exchange)
            self.probed = False
            if not exchange.finished or self.transport.torn:
                self.reason = "unfinished"
                return
            if exchange.keep_alive and not self._parser.complete:
                await self._discard()
            if not (exchange.keep_alive and self._parser.complete):
                self.reason = "done"
                return
            self._exchange = self._pace = None
            self._parser.next()

    async def _wait_for(self, place: trio.Event, exchange: Exchange) -> None:
        """Wait for a place, unless it asks for a probe: that is answered in front of it."""
        self.probed = exchange.received and exchange.path in self.server.probes
        if self.probed:
            exchange.keep_alive = False
        else:
            self.end_after(self.server.limits.head_s, "crowded")
            await place.wait()
            self.scope.deadline = math.inf

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
                self.reason, self.refusal = "bad_request", error
                return False
            if parser.head_complete:
                if self.scope.deadline != math.inf:
                    self.scope.deadline = math.inf
                return True
            if not late:
                late = True
                self.spared_until = trio.current_time() + SPARED_S
                self.server.queue(self)
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
        self.server.queue(self)
        data = b""
        while not data:
            data = await self.transport.receive()
            if not data:
                self.reason = "done"
                return b""
            data = data.lstrip(b"\r\n")  # some clients send an empty line behind a body
        self.idle = False
        return data

    async def _discard(self) -> None:
        """What is left of a request's body behind its answer."""
        with self._linger():
            while not self._parser.complete:
                self._parser.body.clear()
                await self.fill()
        self._lingering = None

    async def _websocket(self, exchange: Exchange) -> None:
        early, self._pending = self._pending, b""
        try:
            self.socket = socket = WebSocket(self, exchange, early)
        except BadRequest as error:
            self.reason, self.refusal = "bad_request", error
            return
        with self.server.metrics.websocket():
            await serve_socket(self.server, exchange, socket)
        if self.reason is None:
            self.reason = "done"
