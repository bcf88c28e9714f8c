"""Hypercorn's trio worker, as an alternative to this project's own server.

Hypercorn also speaks HTTP/2, and has none of this server's limits: use it only behind a trusted proxy.
"""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import trio
from hypercorn.config import Config
from hypercorn.events import Event, Updated
from hypercorn.trio.lifespan import Lifespan
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState
from hypercorn.utils import wrap_app

from omni_actors.entrypoints.server import listeners

KEEP_ALIVE_S = 75.0
"""Seconds for which an idle connection is kept for the client's next request."""

READER_S = 30.0
"""Seconds after which a client that reads nothing of its pending response is disconnected."""

log = logging.getLogger("omni_actors.server")


class _Connection(TCPServer):
    """A connection whose failure ends only itself, and which ends when its client has closed its end and has its
    response.

    Hypercorn alone would keep such a connection for all of :data:`KEEP_ALIVE_S`, and let its exceptions end the server.
    """

    _ended = False

    async def run(self) -> None:
        try:
            await super().run()
        except Exception as error:
            log.warning("a connection failed: %s", error, exc_info=log.isEnabledFor(logging.DEBUG))
        except BaseExceptionGroup as group:
            failures, rest = group.split(Exception)
            if failures is not None:
                log.warning("a connection failed: %s", failures)
            if rest is not None:
                raise rest from None

    async def protocol_send(self, event: Event) -> None:
        if self._ended and isinstance(event, Updated) and event.idle:
            return  # no next request can come
        await super().protocol_send(event)

    async def _read_data(self) -> None:
        await super()._read_data()
        self._ended = True
        await self.idle_task.stop()


async def serve(
    app: Any,
    hosts: str | Sequence[str],
    port: int,
    *,
    unix_path: str | None = None,
    tls: ssl.SSLContext | None = None,
    grace_s: float = 30.0,
    shutdown: Callable[[], Awaitable[None]] | None = None,
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve any ASGI application, like :func:`omni_actors.entrypoints.server.serve`.

    After ``shutdown`` no new connection is accepted; open connections, idle ones included, have ``grace_s`` seconds
    before they are cancelled.
    """
    config = Config()
    config.accesslog = None
    config.errorlog = log
    config.loglevel = "WARNING"
    config.graceful_timeout = grace_s
    config.keep_alive_timeout = KEEP_ALIVE_S
    config.include_server_header = False
    if not log.level:
        log.setLevel(logging.WARNING)  # Hypercorn's announcements are not ours
    opened = await listeners.listen([hosts] if isinstance(hosts, str) else hosts, port, unix_path)
    wrapped = wrap_app(app, config.wsgi_max_body_size, "asgi")
    state: dict[str, Any] = {}
    lifespan = Lifespan(wrapped, config, state)
    context = WorkerContext(None)
    connection = partial(_Connection, wrapped, config, context, ConnectionState(state.copy()))
    try:
        async with trio.open_nursery() as application:
            await application.start(lifespan.handle_lifespan)
            await lifespan.wait_for_startup()
            async with trio.open_nursery() as connections:
                async with trio.open_nursery() as accepting:
                    sockets = [_listener(listener, tls) for listener in opened]
                    accepting.start_soon(
                        partial(trio.serve_listeners, connection, sockets, handler_nursery=connections)
                    )
                    task_status.started([listeners.url_of(listener, tls) for listener in opened])
                    await (trio.sleep_forever if shutdown is None else shutdown)()
                    accepting.cancel_scope.cancel()
                for listener in opened:
                    listeners.close(listener)
                await context.terminated.set()
                connections.cancel_scope.deadline = trio.current_time() + grace_s
            await lifespan.wait_for_shutdown()
            application.cancel_scope.cancel()
    finally:
        for listener in opened:
            listeners.close(listener)


def _listener(listener: socket.socket, tls: ssl.SSLContext | None) -> trio.abc.Listener[trio.abc.Stream]:
    """Make a trio listener whose connections the kernel ends when their clients do not read (connections inherit the
    listener's options). Hypercorn would wait for such clients without end, in a shielded send that also delays its own
    shutdown."""
    if listener.family != socket.AF_UNIX:
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(READER_S * 1000))
    plain = trio.SocketListener(trio.socket.from_stdlib_socket(listener))
    if tls is None:
        return plain
    tls.set_alpn_protocols(["h2", "http/1.1"])
    return trio.SSLListener(plain, tls, https_compatible=True)
