"""The seam between the application and what serves it. Today that is Hypercorn's trio worker."""

from __future__ import annotations

import logging
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import trio
from hypercorn.config import Config, Sockets
from hypercorn.trio import serve as hypercorn_serve

KEEP_ALIVE_S = 75.0
"""How long an idle connection is kept for the client's next request."""

READER_S = 30.0
"""A client that reads nothing for so long of what waits for it is disconnected."""

BACKLOG = 1024


class _Config(Config):
    """Connections inherit what their listener has: the kernel ends those of clients that do not read. Hypercorn itself
    waits for them for ever, in a shielded send that holds up its own end too."""

    def create_sockets(self) -> Sockets:
        sockets = super().create_sockets()
        for listener in sockets.insecure_sockets:
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(READER_S * 1000))
        return sockets


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
    log = logging.getLogger("omni_actors.server")
    config = _Config()
    config.bind = [f"[{host}]:{port}" if ":" in host else f"{host}:{port}"]
    config.accesslog = None
    config.errorlog = log
    config.loglevel = "WARNING"
    config.graceful_timeout = grace_s
    config.keep_alive_timeout = KEEP_ALIVE_S
    config.backlog = BACKLOG
    config.include_server_header = False
    if not log.level:
        log.setLevel(logging.WARNING)  # its own announcements are not ours
    try:
        await hypercorn_serve(app, config, shutdown_trigger=shutdown, task_status=task_status, mode="asgi")
    except BaseExceptionGroup as group:
        # Its nurseries wrap what binding raises.
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
            error = error.exceptions[0]
        if isinstance(error, OSError):
            raise error from None
        raise
