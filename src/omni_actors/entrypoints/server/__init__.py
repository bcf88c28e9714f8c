"""A generic server: an HTTP/1.1 and WebSocket server on trio, under the application and beside it.

One task per connection, whose failure is its own. A request is an :class:`Exchange` to whoever answers it: a direct
route, or the ASGI application behind an adapter. Its handler is cancelled when its client leaves: closes its end (a
half-closed connection is one that was left: nothing tells the two apart, and a model's time is dear), resets the
connection, or stops reading. :class:`Limits` bounds everything that a client may take.
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
    """Serve an ASGI application until ``shutdown`` returns (or this is cancelled). One that is an :class:`Application`
    too is asked directly, and as ASGI only for its lifespan.

    It listens on every address of ``hosts``, a name, an address or several (``::`` is every address of both families),
    or with ``unix_path`` there instead. ``task_status`` gets the URLs once connections are accepted; ``port`` 0 takes a
    free one, the same for all addresses. ``probes`` are paths that are answered also where all connections are taken.

    After ``shutdown`` no connection is accepted, idle ones are closed, WebSockets are closed with 1001, requests that
    have not wholly come are answered 503, and answers to the others have ``grace_s`` seconds; then their handlers are
    cancelled, whatever their clients do.
    Raises ``OSError`` when one of the addresses cannot be bound, with it as ``filename``: nothing listens then.
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
                    accepting.start_soon(acceptor.place)
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
