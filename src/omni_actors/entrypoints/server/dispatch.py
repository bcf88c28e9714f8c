"""Calls of handlers: a handler's failure becomes an HTTP error, or a WebSocket close code, before a response begins."""

from __future__ import annotations

import logging

from omni_actors.entrypoints.server.errors import JSON_HEADER
from omni_actors.entrypoints.server.http1 import Exchange
from omni_actors.entrypoints.server.server import Server
from omni_actors.entrypoints.server.websocket import WebSocket

DRAINING = "The server is shutting down."

log = logging.getLogger("omni_actors.server")


async def answer(server: Server, exchange: Exchange) -> None:
    """Let the application answer an exchange. A handler that fails, or returns without a response, gives a 500 and a
    log line."""
    failure: BaseException | None = None
    try:
        if server.draining:
            await refuse(server, exchange, 503, DRAINING)
        else:
            await server.application.http(exchange)
    except Exception as error:
        failure = error
    except BaseExceptionGroup as group:
        failure, rest = group.split(Exception)
        if rest is not None:
            if failure is not None:
                log.debug("a handler failed while it was cancelled", exc_info=failure)
            raise rest from None
    if failure is not None:
        log.error("unexpected failure of %s %r", exchange.method, exchange.path, exc_info=failure)
    if not exchange.started:
        await refuse(server, exchange, 500, "Internal error.")


async def serve_socket(server: Server, exchange: Exchange, socket: WebSocket) -> None:
    """Let the application serve a WebSocket, then close it. A handler that fails gives a 500, or the code 1011 after
    accepting."""
    failed = False
    try:
        await socket.serve(server.application.websocket)
    except Exception as error:
        failed = True
        log.error("unexpected failure of WebSocket %r", exchange.path, exc_info=error)
    except BaseExceptionGroup as group:
        _, rest = group.split(Exception)
        if rest is not None:
            raise rest from None
    if not exchange.started:
        await refuse(server, exchange, 500 if failed else 403, "Internal error." if failed else "Not accepted.")
    else:
        await socket.close_and_wait(1011 if failed else 1000)


async def refuse(server: Server, exchange: Exchange, status: int, message: str) -> None:
    """Answer with an error, and close the connection afterwards."""
    exchange.keep_alive = False
    await exchange.respond(status, [JSON_HEADER], server.error_body(status, message))
