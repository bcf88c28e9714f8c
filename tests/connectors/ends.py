"""Both ends of a link in this process, whatever its backend."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from omni_actors.connectors.link import Link
from omni_actors.connectors.packing import Packed, pack
from omni_actors.connectors.payload import Payload
from omni_actors.connectors.shared_memory import Arena
from omni_actors.connectors.unix import UnixLink
from omni_actors.protocol.frames import Ack, Chunk

BACKENDS = ("unix",)

Pair = tuple[Link, Link]


@contextmanager
def open_pair(backend: str) -> Iterator[Pair]:
    """A producer's and a consumer's end."""
    a, b = socket.socketpair()
    ends = UnixLink(1, "b", a), UnixLink(1, "a", b)
    try:
        yield ends
    finally:
        for end in ends:
            end.close()


def send(link: Link, payload: Payload, arena: Arena, seq: int = 0) -> Packed:
    """Queue a payload as chunk ``seq`` of request 7 on edge 0."""
    packed = pack(payload, arena, 1)
    link.send_chunk(Chunk(7, 0, seq, False, packed.kind, packed.meta, packed.metas, packed.data), packed.slot)
    return packed


def take(pair: Pair, count: int = 1) -> list[Chunk | Ack]:
    """The next messages at the consumer's end, while the producer's end writes."""
    got: list[Chunk | Ack] = []
    with select.epoll() as epoll:
        epoll.register(pair[1].fileno(), select.EPOLLIN)
        while len(got) < count:
            pair[0].flush()
            if not epoll.poll(5):
                raise TimeoutError(f"{len(got)} messages of {count}")
            got += pair[1].receive()
    return got


def transfer(payload: Payload, pair: Pair, arena: Arena, seq: int = 0) -> tuple[Payload, Any]:
    """The payload as its consumer sees it, and what holds it at the producer."""
    packed = send(pair[0], payload, arena, seq)
    (chunk,) = take(pair)
    assert type(chunk) is Chunk
    out = pair[1].payload(chunk)
    assert out is not None
    return out, packed.slot
