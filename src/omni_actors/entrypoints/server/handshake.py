"""The TLS handshake of a connection, and those who speak HTTP without one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from omni_actors.entrypoints.server.dispatch import DRAINING
from omni_actors.entrypoints.server.parser import BadRequest
from omni_actors.entrypoints.server.server import CLOSED_S
from omni_actors.entrypoints.server.transport import TlsTransport

if TYPE_CHECKING:
    from omni_actors.entrypoints.server.connection import Connection

NEEDS_TLS = "TLS is spoken here: https:// (or wss://) in place of http:// (or ws://)."


async def shake_hands(connection: Connection, transport: TlsTransport) -> bool:
    """Whether requests may follow. If not, the connection has a reason to end and, where it can be said, a refusal."""
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
