"""Limits on what one client may use of the server: sizes, times and counts, each with its default."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any


def _limit(default: Any, doc: str, *, none: bool = False) -> Any:
    """Declare a limit; with ``none``, 0 means that there is no such limit."""
    return field(default=default, metadata={"doc": doc, "none": none})


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a server. Sizes are in bytes; names in ``_s`` are seconds.

    The size of request bodies is limited by the middleware, which knows the route and the caller.

    Raises:
        ValueError: A value is impossible; the message names the limit.
    """

    request_line_bytes: int = _limit(16 << 10, "Longest target of a request; for a longer one the answer is 414.")
    head_bytes: int = _limit(
        64 << 10,
        "Largest head of a request, and most bytes of chunk extensions and trailers; beyond that the answer is 431.",
    )
    headers: int = _limit(128, "Most header lines of a request; beyond that the answer is 431.")
    head_s: float = _limit(
        10.0,
        "Longest time from a request's first byte (or the beginning of a connection) to the end of its "
        "head; then the answer is 408.",
    )
    keep_alive_s: float = _limit(75.0, "How long a connection is kept for the client's next request.")
    write_s: float = _limit(
        30.0,
        "Longest time that a client takes nothing (less than 128 KiB) of the output that waits for "
        "it; then the connection is cut.",
    )
    linger_s: float = _limit(
        5.0, "How long the rest of a refused body is read and discarded, so that the client sees the answer."
    )
    body_s: float = _limit(600.0, "Longest time for a whole body; then the answer is 408.")
    body_idle_s: float = _limit(
        30.0, "Longest time in which nothing comes of a body, or less than its lowest rate; then the answer is 408."
    )
    body_rate: int = _limit(
        500,
        "Lowest rate of a body in bytes per second; with 0 any rate suffices, as long as something comes.",
        none=True,
    )
    crowded_body_rate: int = _limit(
        8000,
        "The same, over 5 s, while all connections are taken; the slowest body then makes way (408) "
        "for a client that waits.",
    )
    connections: int = _limit(
        4096,
        "Most connections at once. Beyond that, the connection that was idle or busy with its head for "
        "longest makes way, or one with a slow body.",
    )
    connections_reserved: int = _limit(
        16,
        "Further connections, for `/live`, `/ready` and `/health`. Other requests on them wait for a "
        "place, at most `head_s`; the one that has waited longest is answered 503 when more come. With 0 "
        "the next connection waits to be accepted.",
        none=True,
    )
    connections_per_client: int = _limit(
        0,
        "Most connections of one IPv4 address or IPv6 network (/64). 0 means a quarter of `connections` "
        "(at least 16), and no limit for this machine's own addresses, for a proxy on it. A proxy on "
        "another machine needs more.",
        none=True,
    )
    handshakes: int = _limit(
        16, "Most TLS handshakes that are computed at once; a handshake that waits for its client does not count."
    )
    handshake_s: float = _limit(10.0, "Longest time for a TLS handshake, waiting included.")
    message_bytes: int = _limit(
        16 << 20, "Largest WebSocket message, in any number of fragments; a larger one closes the WebSocket (1009)."
    )
    unfinished_bytes: int = _limit(
        256 << 20,
        "Most bytes of unfinished WebSocket messages of all clients; beyond that the WebSocket with "
        "the largest message is closed (1013).",
    )
    ping_s: float = _limit(
        20.0,
        "Silence after which a WebSocket is pinged, and closed (1011) after as long again; 0 means never.",
        none=True,
    )
    close_s: float = _limit(5.0, "Longest time for a WebSocket's client to answer a close.")

    def __post_init__(self) -> None:
        for limit in fields(self):
            value = getattr(self, limit.name)
            if not 0 < value < math.inf and not (value == 0 and limit.metadata["none"]):
                raise ValueError(f"{limit.name} takes a positive number")
