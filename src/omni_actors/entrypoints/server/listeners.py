"""Listening sockets: TCP addresses, unix sockets, TLS."""

from __future__ import annotations

import errno
import os
import socket
import ssl
import stat
from collections.abc import Sequence

import trio

from omni_actors.entrypoints.server import addresses

BACKLOG = 1024

UNSENT = 262_144
"""Largest number of unsent bytes in the kernel per client. (The kernel's default is 4 MiB, and would report a slow
reader's progress only in thirds of that.)"""

VANISHED_MS = 120_000

INHERITED = {
    socket.TCP_NODELAY: 1,
    socket.TCP_NOTSENT_LOWAT: UNSENT,
    socket.TCP_KEEPIDLE: 60,
    socket.TCP_KEEPINTVL: 15,
    socket.TCP_KEEPCNT: 4,
    socket.TCP_USER_TIMEOUT: VANISHED_MS,
}
"""TCP options that connections inherit from their listener.

The kernel probes a client that is silent for a minute every 15 s, and gives the client two minutes to acknowledge sent
bytes (its own default is a quarter of an hour). A vanished client is therefore gone after two minutes, even in the
middle of a response that fills its buffer slowly.
"""


async def listen(hosts: Sequence[str], port: int, unix_path: str | None = None) -> list[socket.socket]:
    """Return listening sockets at ``unix_path``, or else on every address of the hosts.

    Raises ``OSError``, with the address or path as ``filename``; nothing listens then.
    """
    if unix_path is not None:
        return [listen_unix(unix_path)]
    found = await trio.to_thread.run_sync(addresses.resolve, hosts, port, abandon_on_cancel=True)
    options = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
    options += [(socket.IPPROTO_TCP, name, value) for name, value in INHERITED.items()]
    opened = addresses.bind(found, options, BACKLOG)
    for listener in opened:
        listener.setblocking(False)
    return opened


def tls_context(certificate: str, key: str | None) -> ssl.SSLContext:
    """Return the TLS context of a certificate. Raises ``OSError`` (``ssl.SSLError`` is one) for unusable files."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    context.set_alpn_protocols(["http/1.1"])
    return context


def listen_unix(path: str) -> socket.socket:
    """Return a listening socket at a path; a socket of an ended process there is replaced. Raises ``OSError``."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        try:
            listener.bind(path)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or not _is_left_behind(path):
                raise
            os.unlink(path)
            listener.bind(path)
        listener.setblocking(False)
        listener.listen(BACKLOG)
    except OSError as error:
        error.filename = path
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
    return f"{'http' if tls is None else 'https'}://{addresses.authority(name[0], name[1])}"


def _is_left_behind(path: str) -> bool:
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            return False
    except FileNotFoundError:
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        return probe.connect_ex(path) == errno.ECONNREFUSED
