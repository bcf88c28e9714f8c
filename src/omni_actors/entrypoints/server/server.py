"""The state that the connections of one server share: the application, the limits, and the open connections."""

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
"""Seconds that a client has to close its connection after its WebSocket has closed, or while the server drains."""

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
"""The reasons for which a connection ends, as docs/deploying.md explains them."""


@runtime_checkable
class Application(Protocol):
    """The application that answers. A handler's failure is logged and answered with 500 (1011 on a WebSocket)."""

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
    def reads_head(self) -> bool: ...

    @property
    def is_lingering(self) -> bool: ...

    @property
    def left_s(self) -> float | None: ...

    @property
    def on_probe(self) -> bool: ...

    @property
    def socket(self) -> WebSocket | None: ...

    def end(self, reason: Reason) -> None: ...

    def evict(self, reason: Reason) -> None: ...

    def drain(self) -> None: ...


@dataclass(slots=True)
class Server:
    """The state that the connections of one server share."""

    application: Application
    limits: Limits
    metrics: ServerMetrics
    disconnects: DisconnectWatcher
    error_body: ErrorBody
    tls: ssl.SSLContext | None = None
    probes: frozenset[str] = frozenset()
    """Paths that are answered even while all slots are taken."""
    date_line: DateLine = field(default_factory=DateLine)
    connections: dict[ManagedConnection, None] = field(default_factory=dict)
    """Connections that have a slot. Connections that are idle or send a head are in the order in which that began."""
    waiting: dict[ManagedConnection, trio.Event] = field(default_factory=dict)
    """Connections beyond the limit in order of arrival, each with an event that is set when the connection gets a slot.
    """
    freed: trio.lowlevel.ParkingLot = field(default_factory=trio.lowlevel.ParkingLot)
    """Tasks that wait for a connection to end, or to become one that may be ended."""
    handshakes: trio.CapacityLimiter = field(init=False)
    held: int = 0
    """Bytes of unfinished WebSocket messages."""
    draining: bool = False
    _none_until: float = -math.inf
    """Trio time before which :meth:`shed` would find no connection to end."""

    def __post_init__(self) -> None:
        self.handshakes = trio.CapacityLimiter(self.limits.handshakes)

    @property
    def scheme(self) -> str:
        return "http" if self.tls is None else "https"

    def add(self, connection: ManagedConnection, *, waits: bool = False) -> None:
        """Register a new connection, with a slot, or (``waits``) without one."""
        if waits:
            self.waiting[connection] = trio.Event()
            self.freed.unpark_all()
        else:
            self.connections[connection] = None
        self.metrics.connection_opened()

    def give_slot(self, connection: ManagedConnection) -> None:
        """Give a slot to a waiting connection."""
        place = self.waiting.pop(connection)
        self.connections[connection] = None
        place.set()
        self.may_shed(connection.spared_until)
        self.freed.unpark_all()

    def remove(self, connection: ManagedConnection, reason: Reason) -> None:
        """Remove a connection that has ended."""
        if self.waiting.pop(connection, None) is None:
            del self.connections[connection]
        if connection.socket is not None:
            self.held -= connection.socket.held
        self.metrics.connection_closed(reason)
        self.freed.unpark_all()

    def queue(self, connection: ManagedConnection) -> None:
        """Put a connection behind all that have been idle, or have been sending a head, for longer."""
        if connection in self.connections:
            self.connections[connection] = self.connections.pop(connection)
        self.may_shed(connection.spared_until)

    def may_shed(self, at: float) -> None:
        """Note that :meth:`shed` may find one more connection from this trio time on."""
        if at < self._none_until:
            self._none_until = at
            self.freed.unpark_all()

    def hold(self, socket: WebSocket, size: int) -> None:
        """Set the bytes of an unfinished message that this WebSocket holds. If all WebSockets together hold too much,
        the one that holds most is closed, so that clients cannot crowd out others with messages that never end."""
        self.held += size - socket.held
        socket.held = size
        if self.held > self.limits.unfinished_bytes:
            sockets = (it.socket for it in self.connections if it.socket is not None)
            largest = max(sockets, key=lambda it: it.held)
            self.held -= largest.held
            largest.held = 0
            largest.drop()

    def drain(self) -> None:
        """Begin to drain: idle connections end now, other connections after their current response."""
        self.draining = True
        for connection in [*self.connections, *self.waiting]:
            connection.drain()

    async def sweep(self) -> None:
        """End connections that have been idle for too long. Runs until cancelled. (A deadline per connection, set and
        removed for each request, would take a twentieth of a request's time in this server.)"""
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
        """End up to ``number`` connections to make room for new ones.

        First come the connections that have been idle, or have been sending a head, for longest: both kinds in one
        order, so that a new client outlives earlier ones that only keep slots occupied. Then come connections that
        linger or whose bodies arrive too slowly, the slowest first. Returns the number of ended connections, and the
        trio time at which one more could be ended.
        """
        now, following, found = trio.current_time(), math.inf, 0
        if now < self._none_until:
            return 0, self._none_until
        slow: list[tuple[float, int, ManagedConnection]] = []
        for it in self.connections:
            if found == number:
                break
            if (it.idle or it.reads_head) and it.spared_until <= now:
                it.evict("shed")
                found += 1
            elif it.idle or it.reads_head:
                following = min(following, it.spared_until)
            elif (left_s := it.left_s) is not None:
                slow.append((left_s, len(slow), it))
        for left_s, _, it in sorted(slow):
            if found == number:
                break
            if left_s > 0:
                following = min(following, now + left_s)
                break
            it.evict("shed")
            found += 1
        if not found:
            self._none_until = following
        return found, following

    def evict_longest_waiting(self) -> bool:
        """End the connection that has waited longest for a slot. Returns whether there was one."""
        for it in self.waiting:
            if not it.on_probe:
                it.evict("crowded")
                return True
        return False
