"""A bridge turns a producer's payloads into a consumer's input, in the consumer's worker."""

from __future__ import annotations

from typing import Protocol

from omni_actors.connectors.payload import Payload


class Bridge(Protocol):
    """A fold over one request's payloads on one edge: deterministic, without side effects outside itself.

    There is one instance per request and edge. A bridge must give the same outputs for any cutting of the same input
    into chunks.
    """

    def feed(self, payload: Payload | None, end: bool) -> list[Payload]:
        """Take the next payload (``None`` for a bare end) and return the payloads that the consumer can have now."""
        ...


class Identity:
    """The bridge of an edge that declares none: every payload passes unchanged."""

    def feed(self, payload: Payload | None, end: bool) -> list[Payload]:
        return [] if payload is None else [payload]
