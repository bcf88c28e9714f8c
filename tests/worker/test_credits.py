"""Credits from an engine's point of view, on the worker's own outbox."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Literal

import pytest

from omni_actors.connectors.payload import text_payload
from omni_actors.connectors.shared_memory import Arena
from omni_actors.connectors.unix import UnixLink
from omni_actors.protocol.frames import Ack, EdgeSpec
from omni_actors.worker.bridge import Identity
from omni_actors.worker.control_socket import ControlSocket
from omni_actors.worker.credits import RequestCredits, Route, Source
from omni_actors.worker.output_collector import OutputCollector

KEY = 1


@pytest.fixture
def sockets() -> Iterator[list[socket.socket]]:
    made: list[socket.socket] = []
    yield made
    for each in made:
        each.close()


def producer(sockets: list[socket.socket], mode: Literal["chunk", "full"], capacity: int) -> OutputCollector:
    """The outbox of a worker with one request on one outgoing edge."""
    control, serving = socket.socketpair()
    mine, peer = socket.socketpair()
    sockets += [control, serving, mine, peer]
    edge = EdgeSpec(index=0, source="a", target="b", port="in", kind="text", mode=mode, capacity=capacity)
    collector = OutputCollector("a", ControlSocket(control), Arena(), lambda key: None)
    collector.requests[KEY] = RequestCredits(KEY, "req", False, (Route(edge, UnixLink(7, "b#0@1", mine)),), set())
    return collector


def test_a_step_cannot_spend_more_credits_than_there_are(sockets: list[socket.socket]) -> None:
    collector = producer(sockets, "chunk", capacity=3)
    spent = 0
    while collector.ready(KEY):
        collector.emit(KEY, text_payload("x"))
        spent += 1
        assert spent <= 3
    collector.flush()
    assert not collector.ready(KEY), "sent is not consumed"
    collector.acknowledged(Ack(KEY, 0, 2))
    for _ in range(2):
        assert collector.ready(KEY)
        collector.emit(KEY, text_payload("x"))
    assert not collector.ready(KEY)


def test_an_edge_in_full_mode_needs_no_credits(sockets: list[socket.socket]) -> None:
    collector = producer(sockets, "full", capacity=1)
    for _ in range(5):
        assert collector.ready(KEY)
        collector.emit(KEY, text_payload("x"))
        collector.flush()
    assert collector.ready(KEY)


def test_a_chunk_that_waits_is_not_given_back_for_a_later_one_that_does_not(sockets: list[socket.socket]) -> None:
    """The memory of the waiting chunk would be another payload's while the chunk is still to be read."""
    mine, peer = socket.socketpair()
    sockets += [mine, peer]
    edge = EdgeSpec(index=0, source="a", target="b", port="in", kind="text")
    source = Source(edge, UnixLink(7, "a#0@1", mine), Identity())
    for seq, queued in enumerate((False, True, False)):
        if queued:
            source.queued.append(source.fed)
        source.fed += 1
        source.marks.append((seq, source.fed))
    assert source.settle() == 1
    source.queued.popleft()
    assert source.settle() == 3
    assert source.settle() is None
