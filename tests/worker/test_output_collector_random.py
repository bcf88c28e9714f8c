"""An output collector under random use: contents arrive whole and in order, credits hold, and all is given back."""

from __future__ import annotations

import random
import socket
from collections import defaultdict

import numpy as np
import pytest
from tests.connectors.ends import wait
from tests.connectors.fake_device import Memory, Tensor

from omni_actors.connectors.device import DeviceLink, Exports
from omni_actors.connectors.payload import DeviceTensors, Payload
from omni_actors.connectors.shared_memory import Arena
from omni_actors.connectors.unix import UnixLink
from omni_actors.pipelines.declaration import Mode
from omni_actors.protocol.frames import Ack, Chunk, EdgeSpec
from omni_actors.protocol.request import Usage
from omni_actors.worker.control_socket import ControlSocket
from omni_actors.worker.credits import RequestCredits, Route
from omni_actors.worker.output_collector import OutputCollector

CAPACITY = 3
BUDGET = 1 << 20


class Scenario:
    """A producer's collector, and two consumers that read and acknowledge at random. One of them may die. With a
    ``device``, which has room only now and then, the first consumer opens its memory."""

    def __init__(self, seed: int, *, device: bool = False) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        ours, self.serving = socket.socketpair()
        self.serving.setblocking(False)
        self.control = ControlSocket(ours)
        pairs = [socket.socketpair() for _ in range(2)]
        self.links = [UnixLink(i, f"c{i}", pair[0]) for i, pair in enumerate(pairs)]
        self.consumers: list[UnixLink | None] = [UnixLink(i, "p", pair[1]) for i, pair in enumerate(pairs)]
        lent: dict[bytes, Tensor] = {}
        self.memory, self.theirs = Memory(lent), Memory(lent)
        self.exports = Exports(self.memory, BUDGET) if device else None
        if device:
            self.links[0] = DeviceLink(0, "c0", pairs[0][0], "p", self.memory)
            consumer = self.consumers[0] = DeviceLink(0, "p", pairs[0][1], "c", self.theirs)
            ends = (self.links[0], consumer)
            for one, other in (ends, ends[::-1], ends):
                one.flush()
                wait(other)
                assert other.receive() == []
            assert self.links[0].direct
        self.collector = OutputCollector("p", self.control, Arena(BUDGET), lambda key: None, self.exports)
        self.placed: dict[int, tuple[Payload, int]] = {}
        self.sent: dict[int, list[int]] = defaultdict(list)
        self.read: dict[tuple[int, int], list[int]] = defaultdict(list)
        self.unread: list[tuple[int, Chunk, Payload | None]] = []
        self.ended: set[tuple[int, int]] = set()
        self.finished: set[int] = set()
        self.edges: dict[int, list[tuple[int, Mode, int]]] = {}

    def admit(self, key: int) -> None:
        routes = []
        self.edges[key] = []
        for index in range(self.chance.randint(1, 3)):
            mode: Mode = self.chance.choice(("chunk", "full"))
            to = self.chance.randrange(2)
            edge = EdgeSpec(
                index=index, source="p", target="c", port=f"{index}", kind="x", mode=mode, capacity=CAPACITY
            )
            routes.append(Route(edge, self.links[to] if self.consumers[to] is not None else None))
            self.edges[key].append((index, mode, to))
        self.collector.requests[key] = RequestCredits(key, f"r{key}", False, tuple(routes), set())

    def use(self, key: int) -> None:
        """Do one thing that an engine may do with a request."""
        collector, what = self.collector, self.chance.random()
        if what < 0.05:
            collector.retire(collector.requests[key])  # an abort
            self.placed.pop(key, None)
        elif what < 0.15 and key not in self.placed:
            collector.finish(key, Usage())
            self.finished.add(key)
        elif not collector.ready(key):
            return
        elif key in self.placed:
            payload, value = self.placed.pop(key)
            payload.tensors["a"][:] = value
            collector.emit(key, payload)
            self.sent[key].append(value)
        else:
            count, value = self.chance.choice((10, 10_000, 200_000)), self.chance.randrange(1 << 30)
            if self.chance.random() < 0.5:
                self.placed[key] = collector.allocate(key, "x", {}, {"a": ((count,), "int64")}), value
            else:
                array = np.full(count, value)
                there = self.exports is not None and self.chance.random() < 0.7
                collector.emit(key, Payload("x", {}, DeviceTensors({"a": Tensor(array)}) if there else {"a": array}))
                self.sent[key].append(value)

    def turn(self) -> None:
        self.memory.capacity = self.chance.choice((0, 1 << 30))
        for link in self.collector.flush():
            if link.pending:
                link.flush()
        self.collector.report()
        self.control.flush()
        try:
            while self.serving.recv(1 << 20):
                pass
        except BlockingIOError:
            pass

    def consume(self, to: int, most: int) -> None:
        """Read everything, and acknowledge up to ``most`` chunks, oldest first."""
        consumer = self.consumers[to]
        if consumer is None:
            return
        for message in consumer.receive():
            assert isinstance(message, Chunk)
            self.unread.append((to, message, consumer.payload(message)))
        for entry in [entry for entry in self.unread if entry[0] == to][:most]:
            self.unread.remove(entry)
            _, chunk, payload = entry
            where = (chunk.key, chunk.edge)
            assert where not in self.ended
            if payload is not None:
                values = set(payload.tensors["a"].tolist())
                assert len(values) == 1, "a slot was reused while it was read"
                self.read[where] += values
            if chunk.end:
                self.ended.add(where)
            consumer.send_ack(Ack(chunk.key, chunk.edge, chunk.seq + 1))
        consumer.flush()
        for message in self.links[to].receive():
            assert isinstance(message, Ack)
            self.collector.acknowledged(message)

    def die(self, to: int) -> None:
        consumer = self.consumers[to]
        if consumer is not None:
            consumer.close()
            self.consumers[to] = None
            self.unread = [entry for entry in self.unread if entry[0] != to]
            self.links[to].close()
            self.collector.lost(self.links[to])

    def close(self) -> None:
        for end in (*self.links, *self.consumers):
            if end is not None:
                end.close()
        self.collector.send_queue.arena.close()
        self.serving.close()


@pytest.mark.parametrize("seed", range(12))
def test_random_use(seed: int) -> None:
    run(Scenario(seed))


@pytest.mark.parametrize("seed", range(6))
def test_random_use_of_a_device(seed: int) -> None:
    scenario = run(Scenario(seed, device=True))
    assert scenario.exports is not None
    assert scenario.exports.total > 0
    assert scenario.exports.used_bytes == 0
    assert not scenario.memory.lent
    assert scenario.consumers[0] is None or not scenario.theirs.opened


def run(scenario: Scenario) -> Scenario:
    """Run forty requests to their ends."""
    chance, collector = scenario.chance, scenario.collector
    keys = iter(range(40))
    more = True
    for turn in range(5000):
        while more and len(collector.requests) < 6:
            key = next(keys, None)
            more = key is not None
            if key is not None:
                scenario.admit(key)
        for key in list(collector.requests):
            if chance.random() < 0.7:
                scenario.use(key)
        scenario.turn()
        for to in range(2):
            scenario.consume(to, chance.randrange(4))
        if scenario.seed % 3 == 0 and turn == 40:
            scenario.die(chance.randrange(2))
        for request in (*collector.requests.values(), *collector.draining.values()):
            for route in request.routes:
                if route.link is not None and route.edge.mode != "full":
                    assert route.seq - route.acked <= CAPACITY + 1, "a bare end takes no credit"
        if not more and not collector.requests:
            break
    assert not collector.requests, "every request ends"
    for _ in range(100):
        scenario.turn()
        for to in range(2):
            scenario.consume(to, 100)
    scenario.turn()
    assert not collector.draining
    assert collector.send_queue.arena.used_bytes == 0
    for key in scenario.finished:
        for index, _mode, to in scenario.edges[key]:
            if scenario.consumers[to] is not None:
                assert scenario.read[key, index] == scenario.sent[key]
                assert (key, index) in scenario.ended
    scenario.close()
    return scenario
