"""One connection: its requests, one after the other."""

from __future__ import annotations

import logging
import math

import trio

from omni_actors.entrypoints.server.closing import SPARED_S, ClosableConnection
from omni_actors.entrypoints.server.dispatch import answer, serve_socket
from omni_actors.entrypoints.server.errors import BadRequest
from omni_actors.entrypoints.server.handshake import shake_hands
from omni_actors.entrypoints.server.http1 import Exchange
from omni_actors.entrypoints.server.minimum_rate import MinimumRate
from omni_actors.entrypoints.server.server import Reason
from omni_actors.entrypoints.server.transport import Stalled, TlsTransport
from omni_actors.entrypoints.server.websocket import WebSocket

PATIENCE_S = 5.0
"""Seconds by which a body may be behind :attr:`Limits.crowded_body_rate` before its connection has to make way for
others."""

log = logging.getLogger("omni_actors.server")


class Connection(ClosableConnection):
    """A client's connection, served in one task.

    ``scope`` is cancelled when the client leaves or must go, which ends the handler wherever it is; ``reason`` then
    says why. Nothing is read ahead: while a request is being answered, further bytes wait in the kernel, and at most
    one segment of them waits here.
    """

    __slots__ = ()

    async def run(self) -> None:
        """Serve the connection until its end. Raises nothing except cancellation from outside."""
        disconnects = self.server.disconnects
        try:
            disconnects.watch(self.transport.socket, self.on_disconnect)
            with self.scope:
                if not isinstance(self.transport, TlsTransport) or await shake_hands(self, self.transport):
                    await self._requests()
            await self._finish_connection()
        except Exception:
            self.reason = "failed"
            log.exception("a connection failed")
        finally:
            if self.reason is None:
                self._cut_short()
            disconnects.forget(self.transport.socket)
            self.close(self.reason or "failed", reset=self._is_cut())

    def close(self, reason: Reason, *, reset: bool) -> None:
        """Close the transport and unregister, at the end of :meth:`run` or instead of it."""
        log.debug("connection of %s: %s", self.client, reason)
        self.transport.close(reset=reset)
        self.server.remove(self, reason)

    # --- bytes

    async def send(self, data: bytes) -> None:
        """Send bytes. Cancelled when the client is gone or stops reading, or when an earlier send was cancelled
        half-way."""
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
        """Read more of the current request. Cancelled when the client is gone or breaks the protocol."""
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
        """Receive more of the body; while all slots are taken, the body has to arrive at a minimum rate."""
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
            self.on_probe = False
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
        """Wait for a slot. A request for a probe does not wait."""
        self.on_probe = exchange.received and exchange.path in self.server.probes
        if self.on_probe:
            exchange.keep_alive = False
        else:
            self.end_after(self.server.limits.head_s, "crowded")
            await place.wait()
            self.scope.deadline = math.inf

    async def _head(self) -> bool:
        """Read a request's head. Returns ``False`` if there is none."""
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
        """Return the first bytes of the next request; ``b""`` when the client closes instead."""
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
        """Read and discard the rest of a request's body after the response."""
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
