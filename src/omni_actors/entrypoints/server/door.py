"""How many connections are let in, and what becomes of those over the limit."""

from __future__ import annotations

import errno
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
"""How long accepting pauses when the process has no descriptor left and no connection ends."""

RESERVED = 256
"""Descriptors that are left to the rest of the process: its workers' channels, pages, wardens, and new ones. Where
there are few, half of them."""

BATCH = 16
"""So many connections are accepted before others run."""

MOST_MS = (1 << 31) - 1
"""Most that the kernel takes for a time."""

_FULL = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

log = logging.getLogger("omni_actors.server")


class Door:
    """Lets connections in, each in a task of its own, as far as the limits allow."""

    def __init__(self, server: Server, connections: trio.Nursery) -> None:
        self._server = server
        self._nursery = connections
        self._clients: Counter[str] = Counter()
        self._full = False
        self._most = _most(server.limits.connections)

    async def accept(self, listener: socket.socket) -> None:
        """Runs until it is cancelled. No failure of a client's or of the kernel's ends it."""
        while True:
            await trio.lowlevel.wait_readable(listener)
            await self._room()
            for _ in range(BATCH):
                if self._is_full() or not await self._accept_one(listener):
                    break
            await trio.lowlevel.checkpoint()

    def sweep(self, listener: socket.socket) -> None:
        """Take whoever stands at the door already, once the server drains: they are told so."""
        for _ in range(BACKLOG):
            try:
                self._begin(listener, *listener.accept())
            except OSError:
                return

    def _is_full(self) -> bool:
        return len(self._server.connections) >= self._most

    async def _room(self) -> None:
        """For somebody who waits."""
        server = self._server
        if self._is_full():
            server.metrics.accepting_paused("connections")
        while self._is_full():
            with trio.move_on_at(server.shed(1)):
                await server.freed.park()

    async def _accept_one(self, listener: socket.socket) -> bool:
        """``False`` when nobody waits any more (or nobody can be let in)."""
        try:
            connection, address = listener.accept()
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno not in _FULL:
                return True  # the client's: it has gone already
            if not self._full:
                self._full = True
                log.warning("accepting pauses: %s", error.strerror)
            self._server.metrics.accepting_paused("descriptors")
            self._server.shed(BATCH)
            with trio.move_on_after(PAUSE_S):
                await self._server.freed.park()
            return False
        self._full = False
        try:
            self._begin(listener, connection, address)
        except OSError:  # the client's, again
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
        server.add(accepted)
        self._nursery.start_soon(self._serve, accepted)

    async def _serve(self, connection: Connection) -> None:
        limit = self._server.limits.connections_per_client
        host = connection.client[0] if connection.client is not None and limit else None
        if host is None:
            await connection.run()
            return
        if self._clients[host] >= limit:
            connection.close("too_many", reset=True)
            return
        self._clients[host] += 1
        try:
            await connection.run()
        finally:
            self._clients[host] -= 1
            if not self._clients[host]:
                del self._clients[host]


def _most(wanted: int) -> int:
    """So many connections as there are descriptors for, beside what the process itself needs."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    possible = max(1, descriptors - min(RESERVED, descriptors // 2))
    if descriptors != resource.RLIM_INFINITY and possible < wanted:
        log.warning(
            "%d connections at once instead of %d: the process may open %d files", possible, wanted, descriptors
        )
        return possible
    return wanted
