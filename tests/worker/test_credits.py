"""Credits as an engine sees them, on the loop's own outbox."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Literal

import pytest

from omni_actors.connectors.payload import text_payload
from omni_actors.protocol.frames import PROTOCOL_VERSION, Ack, EdgeSpec, Hello, Submit, Wire
from omni_actors.worker.engines.stub import StubEngine
from omni_actors.worker.loop import Worker

KEY, LINK = 1, 7


@pytest.fixture
def sockets() -> Iterator[list[socket.socket]]:
    made: list[socket.socket] = []
    yield made
    for each in made:
        each.close()


def producer(sockets: list[socket.socket], mode: Literal["chunk", "full"], capacity: int) -> Worker:
    """A worker with one request on one outgoing edge."""
    control, _serving = socket.socketpair()
    mine, _peer = socket.socketpair()
    sockets += [control, _serving, _peer]
    edge = EdgeSpec(index=0, source="a", target="b", port="in", kind="text", mode=mode, capacity=capacity)
    hello = Hello(version=PROTOCOL_VERSION, stage="a", replica=0, incarnation=1, engine="", adapter="", outputs=(edge,))
    worker = Worker(control, hello, StubEngine(hello), {})
    worker._fds.append(mine.detach())
    worker._handle(Wire(LINK, "b#0@1"))
    worker._handle(Submit(KEY, "req", {}, (), ((0, LINK),), False))
    return worker


def test_a_step_cannot_spend_more_credits_than_there_are(sockets: list[socket.socket]) -> None:
    worker = producer(sockets, "chunk", capacity=3)
    spent = 0
    while worker.ready(KEY):
        worker.emit(KEY, text_payload("x"))
        spent += 1
        assert spent <= 3
    worker._flush()
    assert not worker.ready(KEY), "sent is not consumed"
    worker._ack(Ack(KEY, 0, 2))
    for _ in range(2):
        assert worker.ready(KEY)
        worker.emit(KEY, text_payload("x"))
    assert not worker.ready(KEY)
    worker.close()


def test_an_edge_in_full_mode_needs_no_credits(sockets: list[socket.socket]) -> None:
    worker = producer(sockets, "full", capacity=1)
    for _ in range(5):
        assert worker.ready(KEY)
        worker.emit(KEY, text_payload("x"))
        worker._flush()
    assert worker.ready(KEY)
    worker.close()
