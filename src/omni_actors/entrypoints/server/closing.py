"""The end of a connection: the reasons for it, and the last bytes that its client is sent."""

from __future__ import annotations

import math

import trio

from omni_actors.entrypoints.server.dispatch import DRAINING
from omni_actors.entrypoints.server.errors import BadRequest
from omni_actors.entrypoints.server.http1 import Exchange, error_response
from omni_actors.entrypoints.server.minimum_rate import MinimumRate
from omni_actors.entrypoints.server.parser import RequestParser
from omni_actors.entrypoints.server.server import CLOSED_S, Reason, Server
from omni_actors.entrypoints.server.transport import Stalled, Transport
from omni_actors.entrypoints.server.websocket import WebSocket

SPARED_S = 1.0
"""Seconds for which a client that sends the head of a request, or does the TLS handshake before, is not closed in
favour of other connections. A slower client is slow or silent on purpose, or its network is."""

CROWDED = "All connections are taken; try again later."
TOO_SLOW = "All connections are taken, and the body of this request arrived too slowly."


class ClosableConnection:
    """The state of a client's connection, and every way in which the connection ends.

    :class:`~omni_actors.entrypoints.server.connection.Connection` adds the requests. ``scope`` is cancelled when the
    client leaves or the server ends the connection; ``reason`` then says why.
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
        "on_probe",
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
        """The listener's address: host and port, or the path of a unix socket."""
        self.client = client
        self.idle = False
        self.idle_until = math.inf
        """Trio time at which :meth:`Server.sweep` ends the connection, if the connection is idle then."""
        self.on_probe = False
        """Whether a probe is being answered on this connection without a slot."""
        self.reason: Reason | None = None
        self.scope = trio.CancelScope()
        self.socket: WebSocket | None = None
        self.spared_until = trio.current_time() + SPARED_S
        """Trio time from which :meth:`Server.shed` may end the connection while it is idle, sends a head, or lingers.
        """
        self._exchange: Exchange | None = None
        self._hurried = False
        self._late: Reason = "idle"
        self._lingering: trio.CancelScope | None = None
        self._pace: MinimumRate | None = None
        self.refusal: BadRequest | None = None
        self._parser = RequestParser(server.limits)
        self._pending = b""
        self._served = False

    def end(self, reason: Reason) -> None:
        """Cancel the connection's current work and close the connection."""
        if self.reason is None:
            self.reason = reason
        self.scope.cancel()

    def evict(self, reason: Reason) -> None:
        """End the connection in favour of another one. The client is told why, as far as that takes no time."""
        self._hurried = True
        if reason == "shed" and self._lingering is None and self._body_comes:
            self.refusal = BadRequest(408, TOO_SLOW)
        if self._lingering is not None:
            self._lingering.cancel()
        self.end(reason)

    def end_after(self, seconds: float, reason: Reason) -> None:
        """End the connection after ``seconds``, unless another time is set before; ``math.inf`` means never."""
        self._late = reason
        self.scope.deadline = trio.current_time() + seconds

    def on_disconnect(self) -> None:
        """Handle a client that has closed its end or reset the connection."""
        if self.idle:
            self.end("done")
        elif self.socket is None or not self.socket.on_disconnect():
            self.end("client_left")

    def drain(self) -> None:
        if self._lingering is not None:
            self._lingering.deadline = min(self._lingering.deadline, trio.current_time() + CLOSED_S)
        if self.idle or self._has_partial_head:
            self.end("drained")
        elif self.socket is not None:
            self.socket.drain()
        elif self._exchange is not None and not self._exchange.started and self._is_held_up:
            self.refusal = BadRequest(503, DRAINING)  # the request has not arrived in full
            self.end("drained")
        elif not self._served:  # during the TLS handshake
            self.end_after(CLOSED_S, "drained")

    async def _finish_connection(self) -> None:
        """Send the last bytes, and give the client time to read. A socket that is closed with unread bytes in it resets
        the connection, which would destroy a response under way."""
        if self.scope.cancelled_caught and self.reason is None:
            self.reason = self._late
            if self.reason == "head_timeout":
                self.refusal = BadRequest(408, "The head of the request did not arrive in time.")
        if self.reason == "crowded" and self._exchange is not None:
            self.refusal = BadRequest(503, CROWDED)
        if self.reason == "drained" and (self._has_partial_head or self.transport.has_bytes()):
            # a request that crossed the drain
            self.refusal = BadRequest(503, DRAINING)
        last = b""
        answered = self.transport.torn or (self._exchange is not None and self._exchange.started)
        if self.refusal is not None and not answered:
            last = error_response(self.refusal, self.server.error_body)
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
        """Return the scope in which the server waits, after a response, for the client to finish."""
        linger_s = self.server.limits.linger_s
        if self.server.draining or (self.socket is not None and self.socket.both_closed):
            linger_s = min(linger_s, CLOSED_S)
        self._lingering = trio.move_on_after(linger_s)
        self.spared_until = trio.current_time() + SPARED_S
        self.server.may_shed(self.spared_until)
        return self._lingering

    @property
    def reads_head(self) -> bool:
        """Whether only a part of a request's head, or of the TLS handshake before, has arrived: nothing more may ever
        come."""
        return self.reason in (None, "shed") and (self._has_partial_head or not self._served)

    @property
    def is_lingering(self) -> bool:
        """Whether the response has been sent and the server only waits for the rest of the client's bytes."""
        return self._lingering is not None

    @property
    def left_s(self) -> float | None:
        """Seconds for which the connection may continue while all slots are taken; negative means that the connection
        has to make way. ``None`` unless the connection lingers, or waits for a body that no handler has begun to
        answer."""
        if self._lingering is not None:
            return self.spared_until - trio.current_time()
        return self._pace.left_s if self._pace is not None and self._body_comes else None

    @property
    def _body_comes(self) -> bool:
        exchange = self._exchange
        return self._pace is not None and self._pace.waits and not (exchange is not None and exchange.started)

    @property
    def _is_held_up(self) -> bool:
        """Whether the request's body is still arriving, or the request waits for a slot."""
        return not self._parser.complete or (self in self.server.waiting and not self.on_probe)

    @property
    def _has_partial_head(self) -> bool:
        """Whether a part of a request's head has arrived, and no more."""
        return self._served and not self.idle and self._exchange is None and self.refusal is None

    def _has_all(self) -> bool:
        """Whether both sides are done: the client's last bytes are read, and the client has the whole response."""
        parser, transport = self._parser, self.transport
        over = parser.complete and not parser.keep_alive and not self._pending
        return over and not transport.says_end and not transport.has_bytes()

    def _cut_short(self) -> None:
        """End with a short notice because the server ends; nothing may be waited for."""
        self.reason = "shutdown"
        if self.socket is not None:
            self.socket.send_close()
        elif self._exchange is not None and not self._exchange.started:
            self.transport.send_last(error_response(BadRequest(503, DRAINING), self.server.error_body))

    def _is_cut(self) -> bool:
        """Whether the client must see an error, because otherwise the end of the connection would look like the end of
        the response."""
        if self.transport.torn or self.reason == "write_stalled":
            return True
        exchange = self._exchange
        return exchange is not None and exchange.started and not exchange.finished and exchange.ends_with_connection
