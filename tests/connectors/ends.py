"""Both ends of a link in this process, for any backend."""

from __future__ import annotations

import secrets
import select
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from omni_actors.connectors.handshake import SECRET_BYTES
from omni_actors.connectors.link import Link
from omni_actors.connectors.listener import Listener
from omni_actors.connectors.packing import Packed, pack
from omni_actors.connectors.payload import Payload
from omni_actors.connectors.shared_memory import Arena
from omni_actors.connectors.tcp import TcpLink
from omni_actors.connectors.unix import UnixLink
from omni_actors.protocol.frames import Ack, Chunk

BACKENDS = ("unix", "tcp")

Pair = tuple[Link, Link]


class HasFileno(Protocol):
    def fileno(self) -> int: ...


@contextmanager
def open_pair(backend: str) -> Iterator[Pair]:
    """Return a producer's and a consumer's end."""
    inboxes = Arena(), Arena()
    ends = open_tcp(*inboxes) if backend == "tcp" else open_unix()
    try:
        yield ends
    finally:
        for end, inbox in zip(ends, inboxes, strict=True):
            end.close()
            inbox.close()


def open_unix() -> tuple[UnixLink, UnixLink]:
    a, b = socket.socketpair()
    return UnixLink(1, "b", a), UnixLink(1, "a", b)


def open_tcp(ours: Arena, theirs: Arena) -> tuple[TcpLink, TcpLink]:
    """Return two ends that are open and authenticated."""
    secret = secrets.token_bytes(SECRET_BYTES)
    listener = Listener("127.0.0.1")
    try:
        producer = TcpLink.open(1, "b", listener.address, secret, ours)
        listener.expect(1, secret)
        while True:
            wait(producer, listener)
            producer.flush()
            producer.receive()
            for id, sock in listener.serve():
                return producer, TcpLink(id, "a", sock, theirs)
    finally:
        listener.close()


def wait(*things: HasFileno, timeout_s: float = 5.0) -> None:
    """Wait until one of the ends can be read."""
    with select.epoll() as epoll:
        for thing in things:
            epoll.register(thing.fileno(), select.EPOLLIN | select.EPOLLOUT * (getattr(thing, "pending", False)))
        if not epoll.poll(timeout_s):
            raise TimeoutError


def send(link: Link, payload: Payload, arena: Arena, seq: int = 0) -> Packed:
    """Queue a payload as chunk ``seq`` of request 7 on edge 0."""
    packed = pack(payload, arena, 1)
    link.send_chunk(Chunk(7, 0, seq, False, packed.kind, packed.meta, packed.metas, packed.data), packed.slot)
    return packed


def take(pair: Pair, count: int = 1) -> list[Chunk | Ack]:
    """Return the next messages at the consumer's end, while the producer's end writes."""
    got: list[Chunk | Ack] = []
    while len(got) < count:
        pair[0].flush()
        wait(pair[1])
        got += pair[1].receive()
    return got


def transfer(payload: Payload, pair: Pair, arena: Arena, seq: int = 0) -> tuple[Payload, Any]:
    """Return the payload at its consumer, and its memory at the producer."""
    packed = send(pair[0], payload, arena, seq)
    (chunk,) = take(pair)
    assert type(chunk) is Chunk
    out = pair[1].payload(chunk)
    assert out is not None
    return out, packed.slot
