"""The TLS handshake of a connection, and clients that speak plain HTTP to a TLS port."""

from __future__ import annotations

from typing import Protocol

import trio

from omni_actors.entrypoints.server.dispatch import DRAINING
from omni_actors.entrypoints.server.errors import BadRequest
from omni_actors.entrypoints.server.server import CLOSED_S, ManagedConnection, Reason, Server
from omni_actors.entrypoints.server.transport import TlsTransport, Transport

NEEDS_TLS = "This port speaks TLS: use https:// (or wss://) instead of http:// (or ws://)."


class TlsConnection(ManagedConnection, Protocol):
    """The part of a connection that the handshake uses."""

    idle: bool
    reason: Reason | None
    refusal: BadRequest | None
    transport: Transport

    @property
    def server(self) -> Server: ...

    def end_after(self, seconds: float, reason: Reason) -> None: ...


async def shake_hands(connection: TlsConnection, transport: TlsTransport) -> bool:
    """Do the TLS handshake. Returns whether requests may follow; if not, the connection has a reason to end and, where
    the client can read one, a refusal."""
    server = connection.server
    if server.draining:
        connection.end_after(CLOSED_S, "drained")
    with trio.move_on_after(server.limits.handshake_s):
        try:
            connection.idle = True
            server.queue(connection)
            first = await transport.first_byte()
            connection.idle = False
            if not first:
                connection.reason = "done"
                return False
            if (plain := await transport.plain_http(first)) is not None:
                connection.transport = plain
                connection.reason, connection.refusal = "plain_http", BadRequest(400, NEEDS_TLS)
                return False
            server.queue(connection)
            await transport.handshake(server.handshakes)
            if server.draining:
                connection.reason, connection.refusal = "drained", BadRequest(503, DRAINING)
            return not server.draining
        except trio.BrokenResourceError:
            connection.reason = "handshake_failed"
            return False
    connection.reason = "handshake_timeout"
    return False
