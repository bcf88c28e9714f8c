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
"""What a client gets for the head of a request, or its TLS before that, before it has to make way for others: what it
sends is on its way, unless it is slow or silent on purpose."""

CROWDED = "All connections are taken: try again."
TOO_SLOW = "All connections are taken, and the request's body came too slowly."


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
            self.transport.send_last(error_response(BadRequest(503, DRAINING), self.server.error_body))

    def _is_cut(self) -> bool:
        """Whether the client has to see an error where it would take the connection's end for the answer's."""
        if self.transport.torn or self.reason == "write_stalled":
            return True
        exchange = self._exchange
        return exchange is not None and exchange.started and not exchange.finished and exchange.ends_with_connection
