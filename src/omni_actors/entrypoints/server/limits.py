"""What one client may take of the front acceptor: sizes, times and numbers, each with its default."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any


def _limit(default: Any, doc: str, *, none: bool = False) -> Any:
    """``none``: 0 means that there is no such limit."""
    return field(default=default, metadata={"doc": doc, "none": none})


@dataclass(frozen=True, slots=True)
class Limits:
    """Bytes are bytes, ``_s`` are seconds. Raises ``ValueError``, with the name, for what cannot be.

    How large a body may be is the middleware's business: it knows who asks for what.
    """

    request_line_bytes: int = _limit(16 << 10, "Longest target of a request; then 414.")
    head_bytes: int = _limit(
        64 << 10, "Largest head of a request, or extensions and trailers of chunks beyond its data; then 431."
    )
    headers: int = _limit(128, "Most header lines of a request; then 431.")
    head_s: float = _limit(10.0, "From a request's first byte (or a connection's begin) to its head's end; then 408.")
    keep_alive_s: float = _limit(75.0, "How long a connection is kept for its client's next request.")
    write_s: float = _limit(
        30.0, "A client that takes nothing (less than 128 KiB) of what waits for it for so long is cut off."
    )
    linger_s: float = _limit(
        5.0, "How long the rest of a refused body is read and thrown away, so that its sender sees the answer."
    )
    body_s: float = _limit(600.0, "What a client gets to send a whole body; then 408.")
    body_idle_s: float = _limit(30.0, "How long nothing may come of a body, or less than its least rate; then 408.")
    body_rate: int = _limit(500, "Least bytes per second of a body; 0: any, as long as something comes.", none=True)
    crowded_body_rate: int = _limit(
        8000, "The same over 5 s while all connections are taken: the slowest body makes way (408) for who waits."
    )
    connections: int = _limit(
        4096,
        "Most connections at once. Beyond, the one longest idle or busy with its head makes way, or a slow body does.",
    )
    connections_reserved: int = _limit(
        16,
        "Further connections, for `/live`, `/ready` and `/health`. Other requests wait there for a place (at most "
        "`head_s`), the longest is answered 503 when more come; 0: the next one waits.",
        none=True,
    )
    connections_per_client: int = _limit(
        0,
        "Most connections of one IPv4 address or IPv6 network (/64). 0: a quarter of `connections` (at least 16), "
        "and any number of this machine's own, as of a proxy on it. A proxy elsewhere needs more.",
        none=True,
    )
    handshakes: int = _limit(16, "TLS handshakes that are computed at once; who waits for its client is not counted.")
    handshake_s: float = _limit(10.0, "What a TLS handshake gets, waiting included.")
    message_bytes: int = _limit(16 << 20, "Largest WebSocket message, in however many fragments; then 1009.")
    unfinished_bytes: int = _limit(
        256 << 20, "WebSocket messages that have come in part, of all clients; over it the largest is closed (1013)."
    )
    ping_s: float = _limit(
        20.0,
        "A WebSocket that is silent for so long is pinged, and closed (1011) after as long again; 0: never.",
        none=True,
    )
    close_s: float = _limit(5.0, "What a WebSocket's client gets to answer a close.")

    def __post_init__(self) -> None:
        for limit in fields(self):
            value = getattr(self, limit.name)
            if not 0 < value < math.inf and not (value == 0 and limit.metadata["none"]):
                raise ValueError(f"{limit.name} takes a positive number")
