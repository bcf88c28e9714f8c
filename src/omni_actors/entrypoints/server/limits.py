"""What one client may take of the front door: sizes, times and numbers, each with its default."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class Limits:
    """Times are in seconds, sizes in bytes. What happens beyond each stands with it; the metric
    ``http_connections_closed_total`` counts the ends by reason.

    How large a body may be, and how slowly it may come, is the guard's business: it knows what the route takes.
    """

    request_line: int = 16_384
    """Longest method and target; then 414."""
    head: int = 65_536
    """Most of a whole head (and of what frames a chunked body, without any data); then 431."""
    headers: int = 128
    """Most header lines of a request; then 431."""
    head_s: float = 10.0
    """From the first byte of a request (or from the connection's begin) to the end of its head; then 408."""
    keep_alive_s: float = 75.0
    """How long a connection is kept for the client's next request; then it is closed."""
    write_s: float = 30.0
    """Longest time in which a client takes nothing (less than 128 KiB) of what waits for it; then it is cut off
    (reset)."""
    linger_s: float = 5.0
    """How long what is left of a request's body is read and thrown away behind its answer, so that its sender gets to
    see that; then the connection is closed."""
    connections: int = 4096
    """Most connections at once. Beyond, the idle ones that wait longest are closed; without any, accepting pauses."""
    connections_per_client: int = 0
    """Most connections of one address at once; a further one is closed. 0 is no such limit: behind a proxy all clients
    have one address."""
    handshakes: int = 128
    """Most TLS handshakes at once; further ones wait."""
    handshake_s: float = 10.0
    """How long a TLS handshake may take; then the connection is closed."""
    message: int = 16 << 20
    """Largest WebSocket message, however it is fragmented; then 1009."""
    ping_s: float = 20.0
    """A WebSocket from which nothing comes for so long is sent a ping, and is closed (1011) when as much time passes
    again. 0 sends none."""
    close_s: float = 5.0
    """How long a WebSocket's client has for its answer to a close; then the connection is closed."""

    def __post_init__(self) -> None:
        for limit in fields(self):
            value = getattr(self, limit.name)
            if not 0 < value < math.inf and not (value == 0 and limit.name in _OPEN):
                raise ValueError(f"{limit.name} takes a positive number")


_OPEN = frozenset({"connections_per_client", "ping_s"})
"""Where 0 means that there is none."""
