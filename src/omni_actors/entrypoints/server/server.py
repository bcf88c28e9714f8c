"""What the connections of one server share: who answers, the limits, and who is connected."""

from __future__ import annotations

import math
import ssl
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

import trio

from omni_actors.entrypoints.server.departures import Departures
from omni_actors.entrypoints.server.http1 import DateLine, Exchange
from omni_actors.entrypoints.server.limits import Limits
from omni_actors.entrypoints.server.websocket import WebSocket
from omni_actors.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from omni_actors.entrypoints.server.connection import Connection


Reason = Literal[
    "done",
    "client_left",
    "idle",
    "head_timeout",
    "write_stalled",
    "ping_timeout",
    "close_timeout",
    "handshake_timeout",
    "bad_request",
    "handshake_failed",
    "plain_http",
    "too_many",
    "shed",
    "unfinished",
    "failed",
    "drained",
    "shutdown",
]
"""Why a connection has ended, as the README explains it."""


@runtime_checkable
class Application(Protocol):
    """Who answers. A handler's failure is logged, and answered 500 (1011 on a WebSocket)."""

    async def http(self, exchange: Exchange) -> None: ...

    async def websocket(self, socket: WebSocket) -> None: ...


@dataclass(slots=True)
class Server:
    """What the connections of one server share."""

    application: Application
    limits: Limits
    metrics: Metrics
    departures: Departures
    tls: ssl.SSLContext | None = None
    date_line: DateLine = field(default_factory=DateLine)
    connections: dict[Connection, None] = field(default_factory=dict)
    """Those that are idle, or ask, are in the order in which they began to."""
    freed: trio.lowlevel.ParkingLot = field(default_factory=trio.lowlevel.ParkingLot)
    """Who waits for a connection to end, or to have nothing done for it."""
    handshakes: trio.CapacityLimiter = field(init=False)
    held: int = 0
    """Bytes of WebSocket messages that have not wholly come."""
    draining: bool = False

    def __post_init__(self) -> None:
        self.handshakes = trio.CapacityLimiter(self.limits.handshakes)

    @property
    def scheme(self) -> str:
        return "http" if self.tls is None else "https"

    def add(self, connection: Connection) -> None:
        self.connections[connection] = None
        self.metrics.connection_opened()

    def remove(self, connection: Connection, reason: Reason) -> None:
        del self.connections[connection]
        if connection.socket is not None:
            self.held -= connection.socket.held
        self.metrics.connection_closed(reason)
        self.freed.unpark_all()

    def hold(self, socket: WebSocket, size: int) -> None:
        """So much of an unfinished message is held for this WebSocket now. Together too much: the largest has to go, so
        that many cannot crowd out the others by keeping what they never finish."""
        self.held += size - socket.held
        socket.held = size
        if self.held > self.limits.unfinished_bytes:
            sockets = (it.socket for it in self.connections if it.socket is not None)
            largest = max(sockets, key=lambda it: it.held)
            self.held -= largest.held
            largest.held = 0
            largest.let_go()

    def drain(self) -> None:
        """Idle connections end now, the others behind the answer they are at."""
        self.draining = True
        for connection in list(self.connections):
            connection.drain()

    async def sweep(self) -> None:
        """End the connections that have been idle for too long. Runs until it is cancelled. (Deadlines of their own,
        set and taken back for each request, would cost that a twentieth of its time here.)"""
        while True:
            now = trio.current_time()
            following = now + self.limits.keep_alive_s
            for connection in list(self.connections):
                if connection.idle and connection.idle_until <= now:
                    connection.end("idle")
                elif connection.idle:
                    following = min(following, connection.idle_until)
            await trio.sleep_until(following)

    def shed(self, number: int) -> float:
        """Close the connections that have been idle for longest, or have asked for longest for what is not known yet:
        one of both kinds, so that who has just come outlives those that came earlier to keep the others out. Where all
        of them are spared still it is done for none. Returns the trio time at which one is spared no more then."""
        now, following, found = trio.current_time(), math.inf, 0
        for it in self.connections:
            if not it.idle and not it.asks:
                continue
            if it.spared_until > now:
                following = min(following, it.spared_until)
                continue
            it.end("shed")
            found += 1
            if found == number:
                break
        return math.inf if found else following
