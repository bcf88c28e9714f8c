"""Where clients connect: addresses, unix sockets, TLS, and how many are let in."""

from __future__ import annotations

import errno
import logging
import math
import os
import resource
import socket
import ssl
import stat
from collections import Counter
from typing import Any

import trio

from omni_actors.entrypoints.server.connection import Connection
from omni_actors.entrypoints.server.server import Server
from omni_actors.entrypoints.server.transport import TlsTransport, Transport

BACKLOG = 1024

PAUSE_S = 0.1
"""How long accepting pauses when the process has no descriptor left and no connection ends."""

RESERVED = 256
"""Descriptors that are left to the rest of the process: its workers' channels, pages, wardens, and new ones. Where
there are few, half of them."""

BATCH = 16
"""So many connections are accepted before others run."""

UNSENT = 262_144
"""Most bytes that wait in the kernel to be sent to one client. (Its own default is 4 MiB, and it would tell of a slow
reader's progress only by thirds of that.)"""

VANISHED_MS = 120_000

MOST_MS = (1 << 31) - 1
"""Most that the kernel takes for a time."""

INHERITED = {
    socket.TCP_NODELAY: 1,
    socket.TCP_NOTSENT_LOWAT: UNSENT,
    socket.TCP_KEEPIDLE: 60,
    socket.TCP_KEEPINTVL: 15,
    socket.TCP_KEEPCNT: 4,
    socket.TCP_USER_TIMEOUT: VANISHED_MS,
}
"""Options of TCP that connections have from their listener. The kernel asks a client that is silent for a minute every
15 s, and gives it two to acknowledge what it was sent (it would go on for a quarter of an hour by itself): one that has
vanished is gone after two minutes, also in the middle of an answer that is slow to fill its buffer."""

_ABSENT = frozenset({errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL})
_FULL = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

log = logging.getLogger("omni_actors.server")


async def listen(host: str, port: int, unix_path: str | None = None) -> list[socket.socket]:
    """Listening sockets at a path, or else on every address of ``host``. Raises ``OSError``."""
    return [listen_unix(unix_path)] if unix_path is not None else await _listen_tcp(host, port)


def tls_context(certificate: str, key: str | None) -> ssl.SSLContext:
    """Raises ``OSError`` (``ssl.SSLError`` is one) where the files are not what they should be."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    context.set_alpn_protocols(["http/1.1"])
    return context


async def _listen_tcp(host: str, port: int) -> list[socket.socket]:
    found = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    opened: list[socket.socket] = []
    missing: OSError | None = None
    try:
        for family, _, _, _, address in dict.fromkeys(found):
            if port == 0 and opened:  # one port for all
                address = (address[0], opened[0].getsockname()[1], *address[2:])
            try:
                opened.append(_bound(family, address))
            except OSError as error:
                if error.errno not in _ABSENT:
                    raise
                missing = error  # a name may stand for an address of a family that this machine has not
    except OSError:
        for listener in opened:
            listener.close()
        raise
    if missing is not None and not opened:
        raise missing
    return opened


def _bound(family: int, address: tuple[Any, ...]) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in INHERITED.items():
            listener.setsockopt(socket.IPPROTO_TCP, option, value)
        listener.bind(address)
        _listen(listener)
    except OSError:
        listener.close()
        raise
    return listener


def listen_unix(path: str) -> socket.socket:
    """A listening socket at a path; one that a process has left behind there is replaced. Raises ``OSError``."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        try:
            listener.bind(path)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or not _is_left_behind(path):
                raise
            os.unlink(path)
            listener.bind(path)
        _listen(listener)
    except OSError:
        listener.close()
        raise
    return listener


def close(listener: socket.socket) -> None:
    if listener.family == socket.AF_UNIX:
        try:
            os.unlink(listener.getsockname())
        except OSError:
            pass
    listener.close()


def url_of(listener: socket.socket, tls: ssl.SSLContext | None) -> str:
    name = listener.getsockname()
    if listener.family == socket.AF_UNIX:
        return f"unix:{name}"
    host = f"[{name[0]}]" if listener.family == socket.AF_INET6 else name[0]
    return f"{'http' if tls is None else 'https'}://{host}:{name[1]}"


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
                self._begin(*listener.accept())
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
            self._begin(connection, address)
        except OSError:  # the client's, again
            connection.close()
        return True

    def _begin(self, connection: socket.socket, address: object) -> None:
        server = self._server
        connection.setblocking(False)
        client: tuple[str, int] | None = None
        if isinstance(address, tuple):
            client = (address[0], address[1])
        stall_s = server.limits.write_s
        if client is not None and stall_s * 1000 > VANISHED_MS:  # longer than the kernel would wait
            patience_ms = min(math.ceil(stall_s * 1000), MOST_MS)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, patience_ms)
        if server.tls is None:
            transport = Transport(connection, stall_s)
        else:
            transport = TlsTransport(connection, stall_s, server.tls)
        accepted = Connection(server, transport, client)
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


def _listen(listener: socket.socket) -> None:
    listener.setblocking(False)
    listener.listen(BACKLOG)


def _is_left_behind(path: str) -> bool:
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            return False
    except FileNotFoundError:
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        return probe.connect_ex(path) == errno.ECONNREFUSED
