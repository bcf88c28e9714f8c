"""What the connections of one server share: who answers, the limits, and who is connected."""

from __future__ import annotations

import math
import ssl
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

import trio

from omni_actors.entrypoints.server.disconnects import DisconnectWatcher
from omni_actors.entrypoints.server.errors import ErrorBody
from omni_actors.entrypoints.server.http1 import DateLine, Exchange
from omni_actors.entrypoints.server.limits import Limits
from omni_actors.entrypoints.server.metrics import ServerMetrics
from omni_actors.entrypoints.server.websocket import WebSocket

CLOSED_S = 1.0
"""What a client gets to close its connection when it has closed its WebSocket, or the server drains."""

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
    "crowded",
    "unfinished",
    "failed",
    "drained",
    "shutdown",
]
"""Why a connection has ended, as docs/deploying.md explains it."""


@runtime_checkable
class Application(Protocol):
    """Who answers. A handler's failure is logged, and answered 500 (1011 on a WebSocket)."""

    async def http(self, exchange: Exchange) -> None: ...

    async def websocket(self, socket: WebSocket) -> None: ...


class ManagedConnection(Protocol):
    """The part of a connection that its server uses."""

    @property
    def idle(self) -> bool: ...

    @property
    def idle_until(self) -> float: ...

    @property
    def spared_until(self) -> float: ...

    @property
    def asks(self) -> bool: ...

    @property
    def lingers(self) -> bool: ...

    @property
    def left_s(self) -> float | None: ...

    @property
    def probed(self) -> bool: ...

    @property
    def socket(self) -> WebSocket | None: ...

    def end(self, reason: Reason) -> None: ...

    def make_way(self, reason: Reason) -> None: ...

    def drain(self) -> None: ...


@dataclass(slots=True)
class Server:
    """What the connections of one server share."""

    application: Application
    limits: Limits
    metrics: ServerMetrics
    disconnects: DisconnectWatcher
    error_body: ErrorBody
    tls: ssl.SSLContext | None = None
    probes: frozenset[str] = frozenset()
    """Paths that are answered also where all places are taken."""
    date_line: DateLine = field(default_factory=DateLine)
    connections: dict[ManagedConnection, None] = field(default_factory=dict)
    """Those that have a place. Those that are idle, or ask, are in the order in which they began to."""
    waiting: dict[ManagedConnection, trio.Event] = field(default_factory=dict)
    """Those beyond the limit, in the order in which they came, each with what says that it has a place."""
    freed: trio.lowlevel.ParkingLot = field(default_factory=trio.lowlevel.ParkingLot)
    """Who waits for a connection to end, or to have nothing done for it."""
    handshakes: trio.CapacityLimiter = field(init=False)
    held: int = 0
    """Bytes of WebSocket messages that have not wholly come."""
    draining: bool = False
    _none_until: float = -math.inf
    """Trio time before which :meth:`shed` would find none."""

    def __post_init__(self) -> None:
        self.handshakes = trio.CapacityLimiter(self.limits.handshakes)

    @property
    def scheme(self) -> str:
        return "http" if self.tls is None else "https"

    def add(self, connection: ManagedConnection, *, waits: bool = False) -> None:
        """Take note of a new connection: it has a place, or ``waits`` for one."""
        if waits:
            self.waiting[connection] = trio.Event()
            self.freed.unpark_all()
        else:
            self.connections[connection] = None
        self.metrics.connection_opened()

    def place(self, connection: ManagedConnection) -> None:
        """Give a place to one that waits."""
        place = self.waiting.pop(connection)
        self.connections[connection] = None
        place.set()
        self.may_shed(connection.spared_until)
        self.freed.unpark_all()

    def remove(self, connection: ManagedConnection, reason: Reason) -> None:
        """Forget a connection that has ended."""
        if self.waiting.pop(connection, None) is None:
            del self.connections[connection]
        if connection.socket is not None:
            self.held -= connection.socket.held
        self.metrics.connection_closed(reason)
        self.freed.unpark_all()

    def queue(self, connection: ManagedConnection) -> None:
        """Put it behind those that have been idle, or have asked, for longer."""
        if connection in self.connections:
            self.connections[connection] = self.connections.pop(connection)
        self.may_shed(connection.spared_until)

    def may_shed(self, at: float) -> None:
        """From this trio time on :meth:`shed` may find one more."""
        if at < self._none_until:
            self._none_until = at
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
        for connection in [*self.connections, *self.waiting]:
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

    def shed(self, number: int) -> tuple[int, float]:
        """Make room for ``number`` connections, as far as some can make way.

        First those that have been idle for longest, or have asked for longest for what is not known yet: one of both
        kinds, so that who has just come outlives those that came earlier to keep the others out. Then those that
        linger, or whose bodies come too slowly, the slowest first. Returns how many make way, and the trio time at
        which another one would.
        """
        now, following, found = trio.current_time(), math.inf, 0
        if now < self._none_until:
            return 0, self._none_until
        slow: list[tuple[float, int, ManagedConnection]] = []
        for it in self.connections:
            if found == number:
                break
            if (it.idle or it.asks) and it.spared_until <= now:
                it.make_way("shed")
                found += 1
            elif it.idle or it.asks:
                following = min(following, it.spared_until)
            elif (left_s := it.left_s) is not None:
                slow.append((left_s, len(slow), it))
        for left_s, _, it in sorted(slow):
            if found == number:
                break
            if left_s > 0:
                following = min(following, now + left_s)
                break
            it.make_way("shed")
            found += 1
        if not found:
            self._none_until = following
        return found, following

    def turn_away(self) -> bool:
        """End the connection that has waited for a place for longest. Returns whether there was one."""
        for it in self.waiting:
            if not it.probed:
                it.make_way("crowded")
                return True
        return False
