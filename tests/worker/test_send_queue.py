"""Chosen tokens leave a worker before payloads that follow from them, also while the serving process does not read: a
death at any moment leaves no payload with another worker whose tokens the serving process cannot know."""

from __future__ import annotations

import random
import select
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from omni_actors.connectors.link import LinkClosed
from omni_actors.connectors.payload import Payload
from omni_actors.connectors.unix import UnixLink
from omni_actors.protocol.codec import frame, up_reader
from omni_actors.protocol.frames import PROTOCOL_VERSION, Abort, Ack, Chunk, EdgeSpec, Hello, Step, Submit, Up, Wire
from omni_actors.protocol.request import TextDelta, Usage
from omni_actors.worker.engine import Engine, Outbox, Work
from omni_actors.worker.loop import Worker

CAPACITY = 3
PIECES = 6
LINKS = 2
EDGES = (
    EdgeSpec(index=0, source="a", target="b0", port="x", kind="x", mode="chunk", capacity=CAPACITY),
    EdgeSpec(index=1, source="a", target="b1", port="x", kind="x", mode="chunk", capacity=CAPACITY),
    EdgeSpec(index=2, source="a", target="b0", port="y", kind="x", mode="full"),
)
"""By edge, the link is its number modulo two."""


class Telling(Engine):
    """An engine that chooses a number for each request in each step, reports the number (in a delta to a client that
    sees it, else for the ledger), and emits a payload that follows from the number."""

    def __init__(self, hello: Hello) -> None:
        super().__init__(hello)
        self.held: dict[int, tuple[Work, int]] = {}
        self.arrays: dict[int, np.ndarray[Any, Any]] = {}

    def load(self, progress: Callable[[str, float | None], None]) -> dict[str, Any]:
        return {}

    def admit(self, work: Work) -> None:
        self.held[work.key] = (work, 0)
        self.arrays[work.key] = np.zeros(60_000, np.uint8)

    def feed(self, key: int, port: str, payload: Payload | None, end: bool) -> bool:
        return True

    def abort(self, key: int) -> None:
        self.held.pop(key, None)

    @property
    def runnable(self) -> bool:
        return bool(self.held)

    def step(self, out: Outbox) -> bool:
        ran = False
        for key, (work, n) in list(self.held.items()):
            if not out.ready(key):
                continue
            ran = True
            array = self.arrays[key]
            array[:] = n  # an engine's own memory: used again in the next step
            tensors = {"a": array[: (10, 60_000)[n % 2]]}
            if n % 3:
                out.emit(key, Payload("x", {"n": n}, tensors))
            if work.visible:
                out.text(TextDelta(key, 0, "x" * 900, [n]))
            else:
                out.ledger(key, 0, [n], b"x" * 900)
            if not n % 3:
                out.emit(key, Payload("x", {"n": n}, tensors))
            self.held[key] = (work, n + 1)
            if n + 1 == PIECES:
                del self.held[key]
                out.finish(key, Usage())
        return ran


class Bench:
    """A worker's loop in this thread, with the other ends of its sockets. Unread frames of the serving process soon
    fill the control socket."""

    def __init__(self) -> None:
        hello = Hello(version=PROTOCOL_VERSION, stage="a", replica=0, incarnation=1, engine="", adapter="")
        hello.outputs = EDGES
        self.serving, self.control = socket.socketpair()
        self.control.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        self.serving.setblocking(False)
        self.worker = Worker(self.control, hello, Telling(hello), {})
        self.consumers: list[UnixLink] = []
        for i in range(LINKS):
            ours, theirs = socket.socketpair()
            socket.send_fds(self.serving, [frame(Wire(i, f"b{i}#0@1"))], [theirs.fileno()])
            theirs.close()
            self.consumers.append(UnixLink(i, "a#0@1", ours))
        self.reader = up_reader()
        self.told: set[tuple[int, int]] = set()
        """(key, number) that the serving process knows."""
        self.known: set[tuple[int, int]] = set()
        """(key, number) of which another worker has a payload."""
        self.got: dict[tuple[int, int], list[int]] = {}
        """Numbers by key and edge."""
        self.unread: list[tuple[UnixLink, Chunk]] = []
        self.done: list[int] = []
        self.released: list[int] = []

    def submit(self, key: int, edges: tuple[int, ...], *, visible: bool) -> None:
        self.send(Submit(key, f"r{key}", {}, (), tuple((it, it % LINKS) for it in edges), visible))

    def send(self, message: Submit | Abort) -> None:
        self.serving.sendall(frame(message))

    def turn(self) -> None:
        """Do one turn, if the worker would do one now."""
        if self.wakes:
            self.worker.turn()

    @property
    def wakes(self) -> bool:
        return self.worker.patience_s == 0 or bool(select.select([self.worker.fileno()], [], [], 0)[0])

    def hear(self, most: int = 1 << 20) -> None:
        """Let the serving process read at most so many bytes."""
        with suppress(BlockingIOError):
            self.take(self.reader.feed(self.serving.recv(most)))

    def take(self, messages: list[Up]) -> None:
        for step in messages:
            assert isinstance(step, Step)
            self.told |= {(it.key, n) for it in step.texts for n in it.token_ids}
            self.told |= {(it.key, n) for it in step.ledger for n in it.tokens}
            self.done += [it.key for it in step.done]
            self.released += step.released

    def read(self, link: UnixLink) -> None:
        """Let another worker read everything."""
        for chunk in link.receive():
            assert isinstance(chunk, Chunk)
            payload = link.payload(chunk)
            if payload is not None:
                n = payload.meta["n"]
                assert set(payload.tensors["a"].tolist()) == {n}
                self.known.add((chunk.key, n))
                self.got.setdefault((chunk.key, chunk.edge), []).append(n)
            self.unread.append((link, chunk))

    def acknowledge(self, most: int = 1 << 20) -> None:
        for link, chunk in self.unread[:most]:
            link.send_ack(Ack(chunk.key, chunk.edge, chunk.seq + 1))
            link.flush()
        del self.unread[:most]

    def die(self) -> None:
        """End the worker's process: data in the kernel arrives, and nothing else."""
        self.worker.close()
        self.control.close()
        with suppress(BlockingIOError):
            while data := self.serving.recv(1 << 20):
                self.take(self.reader.feed(data))
        for link in self.consumers:
            with suppress(LinkClosed):
                while True:
                    self.read(link)

    def close(self) -> None:
        if self.control.fileno() >= 0:
            self.worker.close()
            self.control.close()
        self.serving.close()
        for link in self.consumers:
            link.close()

    @property
    def full(self) -> bool:
        """Whether the worker has frames for the serving process that the socket does not take."""
        return not self.worker._control.writable


@pytest.fixture
def bench() -> Iterator[Bench]:
    it = Bench()
    yield it
    it.close()


def fill(bench: Bench) -> None:
    """Send requests on all edges, and do turns until nothing moves any more, with nobody reading."""
    for key in range(1, 7):
        bench.submit(key, (0, 1, 2), visible=bool(key % 2))
    for _ in range(100):
        bench.turn()
    assert not bench.wakes, "it waits"
    assert bench.full


def test_a_payload_stays_until_its_tokens_have_left(bench: Bench) -> None:
    fill(bench)
    assert not bench.told
    assert len(bench.known) < 18, "there was credit for more"
    for link in bench.consumers:
        bench.read(link)
    bench.die()
    assert bench.known
    assert bench.known <= bench.told


def test_all_goes_on_when_the_serving_process_reads_again(bench: Bench) -> None:
    fill(bench)
    for _ in range(1000):
        bench.hear()
        for link in bench.consumers:
            bench.read(link)
        bench.acknowledge()
        if not bench.wakes:
            break
        bench.turn()
    assert sorted(bench.released) == sorted(bench.done) == list(range(1, 7))
    assert bench.got == {(key, edge): list(range(PIECES)) for key in range(1, 7) for edge in range(3)}
    assert bench.worker._out.counters()["arena_used_bytes"] == 0


def test_output_taken_at_the_end_of_a_turn_releases_waiting_payloads(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The serving process reads between a turn's two writes: no event reports that later."""
    fill(bench)
    report = bench.worker._out.report

    def read_and_report() -> None:
        for _ in range(20):
            bench.hear()
            bench.worker._control.flush()
        report()

    monkeypatch.setattr(bench.worker._out, "report", read_and_report)
    bench.worker.turn()
    monkeypatch.undo()
    before = len(bench.known)
    assert not bench.full
    assert bench.wakes
    bench.worker.turn()
    for link in bench.consumers:
        bench.read(link)
    assert len(bench.known) > before


def test_requests_that_end_while_their_payloads_wait_leave_nothing(bench: Bench) -> None:
    fill(bench)
    for key in range(1, 7):
        bench.send(Abort(key))
    bench.worker.turn()
    assert bench.worker._out.counters()["jobs"] == 6
    for _ in range(100):
        bench.hear()
        for link in bench.consumers:
            bench.read(link)
        bench.acknowledge()
        bench.turn()
    assert sorted(bench.released) == list(range(1, 7))
    counters = bench.worker._out.counters()
    assert (counters["jobs"], counters["arena_used_bytes"], counters["credits_outstanding"]) == (0, 0, 0)
    assert bench.known <= bench.told


def test_a_consumer_that_dies_while_its_payloads_wait_is_not_waited_for(bench: Bench) -> None:
    fill(bench)
    bench.consumers[0].close()
    gone, there = bench.consumers
    for _ in range(1000):
        bench.hear()
        bench.read(there)
        bench.unread = [it for it in bench.unread if it[0] is not gone]
        bench.acknowledge()
        if not bench.wakes:
            break
        bench.turn()
    assert sorted(bench.released) == list(range(1, 7))
    assert all(bench.got[key, 1] == list(range(PIECES)) for key in range(1, 7))
    assert bench.worker._out.counters()["arena_used_bytes"] == 0


@pytest.mark.parametrize("seed", range(40))
def test_a_death_at_any_moment_leaves_no_payload_without_its_tokens(bench: Bench, seed: int) -> None:
    chance = random.Random(seed)
    reads, key = chance.choice((0.02, 0.2, 0.9)), 0
    for _ in range(chance.randrange(1, 120)):
        if chance.random() < 0.3:
            key += 1
            edges = tuple(sorted(chance.sample(range(3), chance.randint(1, 3))))
            bench.submit(key, edges, visible=chance.random() < 0.5)
        if key and chance.random() < 0.05:
            bench.send(Abort(chance.randint(1, key)))
        bench.turn()
        if chance.random() < reads:
            bench.hear(chance.choice((100, 3000, 1 << 20)))
        for link in bench.consumers:
            if chance.random() < 0.3:
                bench.read(link)
        if chance.random() < 0.5:
            bench.acknowledge(chance.randrange(6))
    bench.die()
    assert bench.known <= bench.told
