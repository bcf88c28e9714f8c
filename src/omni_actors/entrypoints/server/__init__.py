"""An HTTP/1.1 and WebSocket server on trio, usable without the rest of this package.

Each connection has one task, and a failure in that task ends only that connection. A request reaches its handler as an
:class:`Exchange`; the handler is a direct route, or an ASGI application behind an adapter. The handler is cancelled
when its client closes its end, resets the connection or stops reading. (A half-closed connection counts as left:
nothing distinguishes the two, and a model's time is expensive.) :class:`Limits` bounds everything that a client may
use.
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Collection, Sequence

import trio

from omni_actors.entrypoints.server import listeners
from omni_actors.entrypoints.server.acceptor import Acceptor
from omni_actors.entrypoints.server.disconnects import DisconnectWatcher
from omni_actors.entrypoints.server.errors import ErrorBody, default_error_body
from omni_actors.entrypoints.server.http1 import Exchange
from omni_actors.entrypoints.server.limits import Limits
from omni_actors.entrypoints.server.metrics import NoMetrics, ServerMetrics
from omni_actors.entrypoints.server.server import Application, Server
from omni_actors.entrypoints.server.to_asgi import Adapter, ASGIApp
from omni_actors.entrypoints.server.websocket import SocketClosed, WebSocket

__all__ = [
    "ASGIApp",
    "Application",
    "ErrorBody",
    "Exchange",
    "Limits",
    "ServerMetrics",
    "SocketClosed",
    "WebSocket",
    "serve",
]


async def serve(
    app: ASGIApp,
    hosts: str | Sequence[str],
    port: int,
    *,
    limits: Limits | None = None,
    metrics: ServerMetrics | None = None,
    unix_path: str | None = None,
    tls: ssl.SSLContext | None = None,
    probes: Collection[str] = (),
    error_body: ErrorBody = default_error_body,
    grace_s: float = 30.0,
    shutdown: Callable[[], Awaitable[None]] | None = None,
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve an application until ``shutdown`` returns, or until this function is cancelled.

    Args:
        app: An ASGI application. An :class:`Application` is called directly, and as ASGI only for its lifespan.
        hosts: A name, an address, or several, to listen on; ``::`` is every address of both families.
        port: The port; 0 takes a free one, the same for all addresses.
        limits: Bounds on clients, by default those of :class:`Limits`.
        metrics: Counters of connections; by default nothing is counted.
        unix_path: A unix socket to listen on, instead of ``hosts`` and ``port``.
        tls: A TLS context; with one, only TLS is spoken.
        probes: Paths that are answered even while all connections are taken.
        error_body: Makes the JSON bodies of errors that the server answers by itself, from a status and a message.
        grace_s: Seconds that running handlers have after ``shutdown``.
        shutdown: Waited for; when it returns, the server drains.
        task_status: Gets the URLs once connections are accepted.

    Raises:
        OSError: An address cannot be bound; ``filename`` is the address, and nothing listens.

    Draining accepts no further connection, closes idle ones, closes WebSockets with 1001, and answers 503 to requests
    that have not arrived in full. Other handlers have ``grace_s`` seconds and are then cancelled, whatever their
    clients do. Cancellation closes every connection at once.
    """
    opened = await listeners.listen([hosts] if isinstance(hosts, str) else hosts, port, unix_path)
    disconnects = DisconnectWatcher()
    try:
        adapter = Adapter(app)
        answers = app if isinstance(app, Application) else adapter
        server = Server(
            answers, limits or Limits(), metrics or NoMetrics(), disconnects, error_body, tls, frozenset(probes)
        )
        async with adapter.lifespan(), trio.open_nursery() as watching:
            watching.start_soon(disconnects.run)
            watching.start_soon(server.sweep)
            async with trio.open_nursery() as connections:
                acceptor = Acceptor(server, connections)
                async with trio.open_nursery() as accepting:
                    accepting.start_soon(acceptor.give_slots)
                    for listener in opened:
                        accepting.start_soon(acceptor.accept, listener)
                    task_status.started([listeners.url_of(listener, tls) for listener in opened])
                    await (trio.sleep_forever if shutdown is None else shutdown)()
                    accepting.cancel_scope.cancel()
                server.drain()
                for listener in opened:
                    acceptor.sweep(listener)
                    listeners.close(listener)
                connections.cancel_scope.deadline = trio.current_time() + grace_s
            watching.cancel_scope.cancel()
    finally:
        for listener in opened:
            listeners.close(listener)
        disconnects.close()
