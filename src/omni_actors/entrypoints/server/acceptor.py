"""Acceptance of connections: how many are accepted, and what happens to connections over the limit."""

from __future__ import annotations

import errno
import ipaddress
import logging
import math
import resource
import socket
from collections import Counter

import trio

from omni_actors.entrypoints.server.connection import Connection
from omni_actors.entrypoints.server.listeners import BACKLOG, VANISHED_MS
from omni_actors.entrypoints.server.server import Server
from omni_actors.entrypoints.server.transport import TlsTransport, Transport

PAUSE_S = 0.1
"""Seconds for which accepting pauses when the process has no file descriptor left and no connection ends."""

RESERVED = 256
"""File descriptors kept for the rest of the process: workers' channels, pages, wardens and future ones. A process with
few descriptors keeps half of them."""

BATCH = 16
"""Connections accepted before other tasks run."""

LEAST_OF_ONE = 16
"""Least number of connections that one client may have by default, however low the total limit is."""

IPV6_CLIENT_BITS = 64
"""Prefix length of the IPv6 network that counts as one client: one more address in such a network costs a client
nothing."""

WARN_S = 60.0
"""Least seconds between two log lines about a client with too many connections."""

MOST_MS = (1 << 31) - 1
"""Largest time in milliseconds that the kernel accepts."""

_FULL = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

log = logging.getLogger("omni_actors.server")


class Acceptor:
    """Accepts connections, each served in a task of its own, within the limits.

    Beyond :attr:`Limits.connections`, a few further connections are accepted without a slot, and their requests are
    read. Probes are answered there. Every other request waits until a slot is free, or until later connections need the
    room.
    """

    def __init__(self, server: Server, connections: trio.Nursery) -> None:
        limits = server.limits
        self._server = server
        self._nursery = connections
        self._clients: Counter[str] = Counter()
        self._full = False
        self._most = possible_connections(limits.connections)
        self._most_of_one = limits.connections_per_client or max(LEAST_OF_ONE, self._most // 4)
        self._counts_loopback = bool(limits.connections_per_client)
        self._warn_at = -math.inf

    async def accept(self, listener: socket.socket) -> None:
        """Accept connections until cancelled. No failure of a client or of the kernel ends this function."""
        while True:
            await trio.lowlevel.wait_readable(listener)
            await self._make_room()
            for _ in range(BATCH):
                if not self._has_room() or not await self._accept_one(listener):
                    break
            await trio.lowlevel.checkpoint()

    async def give_slots(self) -> None:
        """Give slots to waiting connections as soon as slots are free. Runs until cancelled."""
        server = self._server
        while True:
            wanted = [it for it in server.waiting if not it.on_probe and not it.is_lingering]
            while wanted and not self._is_full():
                server.give_slot(wanted.pop(0))
            _, following = server.shed(len(wanted)) if wanted else (0, math.inf)
            with trio.move_on_at(following):
                await server.freed.park()

    def sweep(self, listener: socket.socket) -> None:
        """Accept the connections that are in the listen queue when the server drains, so that each is told about the
        drain."""
        for _ in range(BACKLOG):
            try:
                self._begin(listener, *listener.accept())
            except OSError:
                return

    def _is_full(self) -> bool:
        return len(self._server.connections) >= self._most

    def _has_room(self) -> bool:
        """Return whether one more connection may be accepted, with a slot or without one."""
        server = self._server
        return not self._is_full() or len(server.waiting) < server.limits.connections_reserved

    async def _make_room(self) -> None:
        """Make room for a connection in the listen queue."""
        server = self._server
        reserved = server.limits.connections_reserved
        if not reserved and self._is_full():
            server.metrics.accepting_paused("connections")
        while not self._has_room():
            found, following = server.shed(reserved or 1)
            if not found:
                server.evict_longest_waiting()
            with trio.move_on_at(following):
                await server.freed.park()

    async def _accept_one(self, listener: socket.socket) -> bool:
        """Accept one connection. Returns ``False`` when the listen queue is empty or no connection can be accepted."""
        try:
            connection, address = listener.accept()
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno not in _FULL:
                return True  # a failure of the client's, which has gone already
            if not self._full:
                self._full = True
                log.warning("accepting pauses: %s", error.strerror)
            self._server.metrics.accepting_paused("descriptors")
            self._server.shed(BATCH)
            self._server.evict_longest_waiting()
            with trio.move_on_after(PAUSE_S):
                await self._server.freed.park()
            return False
        self._full = False
        try:
            self._begin(listener, connection, address)
        except OSError:  # a failure of the client's
            connection.close()
        return True

    def _begin(self, listener: socket.socket, connection: socket.socket, address: object) -> None:
        server = self._server
        connection.setblocking(False)
        name = listener.getsockname()
        client: tuple[str, int] | None = None
        here: tuple[str, int | None] = (name, None)
        if isinstance(address, tuple):
            client, here = (address[0], address[1]), (name[0], name[1])
        stall_s = server.limits.write_s
        if client is not None and stall_s * 1000 > VANISHED_MS:  # longer than the kernel would wait
            patience_ms = min(math.ceil(stall_s * 1000), MOST_MS)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, patience_ms)
        if server.tls is None:
            transport = Transport(connection, stall_s)
        else:
            transport = TlsTransport(connection, stall_s, server.tls)
        accepted = Connection(server, transport, client, here)
        waits = not server.draining and bool(server.waiting or self._is_full())
        if waits and not server.waiting:
            server.metrics.accepting_paused("connections")
        server.add(accepted, waits=waits)
        self._nursery.start_soon(self._serve, accepted)

    async def _serve(self, connection: Connection) -> None:
        client = None if connection.client is None else self._client(connection.client[0])
        if client is None:
            await connection.run()
            return
        if self._clients[client] >= self._most_of_one:
            self._warn(client)
            connection.close("too_many", reset=True)
            return
        self._clients[client] += 1
        try:
            await connection.run()
        finally:
            self._clients[client] -= 1
            if not self._clients[client]:
                del self._clients[client]

    def _client(self, host: str) -> str | None:
        """Return the group under which a client's connections are counted: an IPv4 address, or the network of an IPv6
        address. ``None`` means that the connections are not counted."""
        if not self._counts_loopback and (host.startswith("127.") or host == "::1"):
            return None
        if ":" not in host:
            return host
        return str(ipaddress.ip_network((host.partition("%")[0], IPV6_CLIENT_BITS), strict=False))

    def _warn(self, client: str) -> None:
        now = trio.current_time()
        if now >= self._warn_at:
            self._warn_at = now + WARN_S
            log.warning(
                "%s has %d connections and is refused more; if it is a proxy: serve --limit connections_per_client=N",
                client,
                self._most_of_one,
            )


def possible_connections(wanted: int) -> int:
    """Return the number of connections for which file descriptors suffice, beside the process's own needs."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    possible = max(1, descriptors - min(RESERVED, descriptors // 2))
    if descriptors != resource.RLIM_INFINITY and possible < wanted:
        log.warning(
            "%d connections at once instead of %d: the process may open %d files", possible, wanted, descriptors
        )
        return possible
    return wanted
