"""The seam between the application and what serves it. Today that is Hypercorn's trio worker."""

from __future__ import annotations

import logging
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import trio
from hypercorn.config import Config
from hypercorn.events import Event, Updated
from hypercorn.trio.lifespan import Lifespan
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState
from hypercorn.utils import repr_socket_addr, wrap_app

KEEP_ALIVE_S = 75.0
"""How long an idle connection is kept for the client's next request."""

READER_S = 30.0
"""A client that reads nothing for so long of what waits for it is disconnected."""

BACKLOG = 1024

log = logging.getLogger("omni_actors.server")


class _Connection(TCPServer):
    """One connection, whose failure is its own, and which is over when its client has said its last word and has its
    answer: Hypercorn itself keeps it for the whole of :data:`KEEP_ALIVE_S` then, and lets its exceptions end the
    server."""

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
    host: str,
    port: int,
    *,
    grace_s: float = 30.0,
    shutdown: Callable[[], Awaitable[None]] | None = None,
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve an ASGI application until ``shutdown`` returns (or this is cancelled).

    ``task_status`` gets the URLs once connections are accepted; ``port`` 0 takes a free one. After ``shutdown`` no new
    connection is accepted, and requests under way have ``grace_s`` seconds before they are cancelled.
    Raises ``OSError`` when the address cannot be bound.
    """
    config = Config()
    config.bind = [f"[{host}]:{port}" if ":" in host else f"{host}:{port}"]
    config.accesslog = None
    config.errorlog = log
    config.loglevel = "WARNING"
    config.graceful_timeout = grace_s
    config.keep_alive_timeout = KEEP_ALIVE_S
    config.include_server_header = False
    if not log.level:
        log.setLevel(logging.WARNING)  # Hypercorn's announcements are not ours
    listeners, urls = _listen(config)
    wrapped = wrap_app(app, config.wsgi_max_body_size, "asgi")
    state: dict[str, Any] = {}
    lifespan = Lifespan(wrapped, config, state)
    context = WorkerContext(None)
    connection = partial(_Connection, wrapped, config, context, ConnectionState(state.copy()))
    async with trio.open_nursery() as application:
        await application.start(lifespan.handle_lifespan)
        await lifespan.wait_for_startup()
        async with trio.open_nursery() as connections:
            async with trio.open_nursery() as accepting:
                accepting.start_soon(partial(trio.serve_listeners, connection, listeners, handler_nursery=connections))
                task_status.started(urls)
                if shutdown is None:
                    await trio.sleep_forever()
                else:
                    await shutdown()
                accepting.cancel_scope.cancel()
            await context.terminated.set()
            connections.cancel_scope.deadline = trio.current_time() + grace_s
        await lifespan.wait_for_shutdown()
        application.cancel_scope.cancel()


def _listen(config: Config) -> tuple[list[trio.SocketListener], list[str]]:
    """Bound and listening sockets, and their URLs. Connections inherit what their listener has: the kernel ends those
    of clients that do not read. Hypercorn itself waits for them for ever, in a shielded send that holds up its own end
    too."""
    listeners, urls = [], []
    for bound in config.create_sockets().insecure_sockets:
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(READER_S * 1000))
        bound.listen(BACKLOG)
        listeners.append(trio.SocketListener(trio.socket.from_stdlib_socket(bound)))
        urls.append(f"http://{repr_socket_addr(bound.family, bound.getsockname())}")
    return listeners, urls
