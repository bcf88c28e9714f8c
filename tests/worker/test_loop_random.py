"""Workers' loops under random use, three of them linked: views hold while their consumer has them, credits are kept,
each request is released once, and in the end nothing is held."""

from __future__ import annotations

import logging
import random
import secrets
import select
import socket
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.connectors.fake_device import Memory, Tensor

from omni_actors.connectors.handshake import SECRET_BYTES
from omni_actors.connectors.listener import Listener
from omni_actors.connectors.payload import DeviceTensors, Payload
from omni_actors.protocol.codec import frame, up_reader
from omni_actors.protocol.frames import (
    PROTOCOL_VERSION,
    Abort,
    EdgeSpec,
    Hello,
    Query,
    Reply,
    Step,
    Stop,
    Submit,
    TcpEnd,
    Up,
    Wire,
)
from omni_actors.protocol.request import Usage
from omni_actors.worker.engine import Engine, Outbox, Work
from omni_actors.worker.loop import Worker

BACKENDS = ("unix", "device", "tcp")
CAPACITY = 3
PIECES = 8
EDGES = (("a", "b", "x"), ("a", "b", "y"), ("b", "c", "x"), ("a", "c", "y"))
"""Two that share a link, one further on, and one that goes past."""


@dataclass(slots=True)
class Held:
    work: Work
    open: set[str]
    queues: dict[str, deque[Payload]]
    due: int = 0
    read: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    placed: Payload | None = None
    emitted: int = 0


class Careless(Engine):
    """An engine that takes some input at once and queues other input, as views, until a step starts on it; it emits as
    many pieces as it was given on port x. Its input, and mistakes in the input, are kept for the test."""

    def __init__(self, hello: Hello, seed: int, faults: list[str]) -> None:
        super().__init__(hello)
        self.chance = random.Random(f"{seed}{hello.stage}")
        self.faults = faults
        self.held: dict[int, Held] = {}
        self.results: dict[int, dict[str, list[int]]] = {}

    def load(self, progress: Callable[[str, float | None], None]) -> dict[str, Any]:
        return {}

    def admit(self, work: Work) -> None:
        held = Held(work, set(work.ports), {port: deque() for port in work.ports})
        held.due = 0 if work.ports else PIECES
        self.held[work.key] = held

    def feed(self, key: int, port: str, payload: Payload | None, end: bool) -> bool:
        held = self.held[key]
        if end:
            held.open.discard(port)
        if payload is None:
            return True
        if len(held.queues[port]) > CAPACITY:
            self.faults.append("more input than there are credits")
        if self.chance.random() < 0.5:
            self.take(held, port, payload)
            return True
        held.queues[port].append(payload)
        return False

    def take(self, held: Held, port: str, payload: Payload) -> None:
        seen = set(payload.tensors["a"].tolist())
        if seen != {payload.meta["value"]}:
            self.faults.append(f"a slot was reused while it was read: {seen} instead of {payload.meta}")
        held.read[port].append(payload.meta["value"])
        held.due += port == "x"

    def abort(self, key: int) -> None:
        self.held.pop(key, None)

    @property
    def runnable(self) -> bool:
        return bool(self.held)

    def step(self, out: Outbox) -> bool:
        ran = False
        for key, held in list(self.held.items()):
            if self.chance.random() < 0.3:
                ran = True
                continue
            for port, queue in held.queues.items():
                if queue and self.chance.random() < 0.7:
                    ran = True
                    self.take(held, port, queue.popleft())
                    out.consumed(key, port)
                elif queue:
                    ran = True
            if held.due and out.ready(key):
                ran = True
                self.emit(key, held, out)
            if not held.due and not held.open and not any(held.queues.values()) and held.placed is None:
                ran = True
                del self.held[key]
                self.results[key] = {port: sorted(values) for port, values in held.read.items()}
                out.finish(key, Usage())
        return ran

    def emit(self, key: int, held: Held, out: Outbox) -> None:
        value = key * 1000 + held.emitted
        if held.placed is None:
            count = self.chance.choice((10, 10_000, 40_000))
            meta = {"value": value}
            if self.chance.random() < 0.5:
                held.placed = out.allocate(key, "x", meta, {"a": ((count,), "int64")})
                return
            array = np.full(count, value)
            lying = DeviceTensors({"a": Tensor(array)})
            payload = Payload("x", meta, lying if self.chance.random() < 0.5 else {"a": array})
        else:
            payload, held.placed = held.placed, None
            payload.tensors["a"][:] = value
        held.due -= 1
        held.emitted += 1
        if held.work.routed:
            out.emit(key, payload)


class End:
    """The serving process's end of one worker, which runs in a thread."""

    def __init__(self, stage: str, connector: str, seed: int, faults: list[str], lent: dict[bytes, Tensor]) -> None:
        edges = [
            EdgeSpec(
                index=i, source=s, target=t, port=p, kind="x", mode="chunk", capacity=CAPACITY, connector=connector
            )
            for i, (s, t, p) in enumerate(EDGES)
        ]
        hello = Hello(
            version=PROTOCOL_VERSION,
            stage=stage,
            replica=0,
            incarnation=1,
            engine="",
            adapter="",
            limits={"arena_bytes": 512 << 10},
            inputs=tuple(it for it in edges if it.target == stage),
            outputs=tuple(it for it in edges if it.source == stage),
        )
        self.sock, theirs = socket.socketpair()
        self.sock.settimeout(10)
        listener = Listener("127.0.0.1") if connector == "tcp" and hello.inputs else None
        self.address = None if listener is None else listener.address
        self.engine = Careless(hello, seed, faults)
        self.reader = up_reader()
        self.released: Counter[int] = Counter()
        self.done: Counter[int] = Counter()
        self.others: list[Up] = []
        self.memory = Memory(lent)
        memory = self.memory if connector == "device" else None
        worker = Worker(theirs, hello, self.engine, {}, listener, memory=memory)

        def run() -> None:
            try:
                worker.run()
            except Exception as error:
                logging.getLogger("test").exception("the worker cannot go on")
                faults.append(f"{stage}: {error!r}")
            finally:
                worker.close()
                theirs.close()

        self.thread = threading.Thread(target=run)
        self.thread.start()

    def send(self, message: msgspec.Struct) -> None:
        self.sock.sendall(frame(message))

    def hear(self) -> None:
        for message in self.reader.feed(self.sock.recv(1 << 20)):
            if isinstance(message, Step):
                self.released.update(message.released)
                self.done.update(it.key for it in message.done)
            else:
                self.others.append(message)


@contextmanager
def chain(connector: str, seed: int) -> Iterator[tuple[dict[str, End], dict[tuple[str, str], int], list[str]]]:
    """Three linked workers, by stage, the links by their ends, and the mistakes so far."""
    faults: list[str] = []
    lent: dict[bytes, Tensor] = {}
    ends = {stage: End(stage, connector, seed, faults, lent) for stage in "abc"}
    links: dict[tuple[str, str], int] = {}
    try:
        for source, target, _ in EDGES:
            if (source, target) in links:
                continue
            link = links[source, target] = len(links)
            if connector == "tcp":
                secret = secrets.token_bytes(SECRET_BYTES)
                ends[target].send(Wire(link, source, TcpEnd(secret)))
                ends[source].send(Wire(link, target, TcpEnd(secret, ends[target].address)))
                continue
            for stage, peer, sock in zip((source, target), (target, source), socket.socketpair(), strict=True):
                socket.send_fds(ends[stage].sock, [frame(Wire(link, peer))], [sock.fileno()])
                sock.close()
        yield ends, links, faults
    finally:
        for end in ends.values():
            with suppress(OSError):  # one that could not go on has said why
                end.send(Stop())
        for end in ends.values():
            end.thread.join(5)
            end.sock.close()


def submit(key: int, ends: dict[str, End], links: dict[tuple[str, str], int], connector: str) -> None:
    for stage in "cba":
        routes = tuple((i, links[s, t]) for i, (s, t, _) in enumerate(EDGES) if s == stage)
        sources = tuple((i, links[s, t]) for i, (s, t, _) in enumerate(EDGES) if t == stage and connector == "tcp")
        ports = tuple(p for s, t, p in EDGES if t == stage)
        ends[stage].send(Submit(key, f"r{key}", {}, ports, routes, False, sources))


@pytest.mark.parametrize("connector", BACKENDS)
@pytest.mark.parametrize("seed", range(2))
def test_requests_that_end_and_requests_that_are_aborted(connector: str, seed: int) -> None:
    chance = random.Random(seed)
    with chain(connector, seed) as (ends, links, faults):
        aborted = set[int]()
        live = set[int]()
        key = 0
        by_fd = {end.sock.fileno(): end for end in ends.values()}
        limit = time.monotonic() + 30
        with select.epoll() as epoll:
            for fd in by_fd:
                epoll.register(fd, select.EPOLLIN)
            while key < 40 or live:
                assert time.monotonic() < limit, f"{live} do not end; {faults}"
                if key < 40 and len(live) < 6:
                    submit(key, ends, links, connector)
                    live.add(key)
                    key += 1
                for fd, _ in epoll.poll(0.02 if live else 0):
                    by_fd[fd].hear()
                for victim in [it for it in live if chance.random() < 0.01]:
                    aborted.add(victim)
                    for end in ends.values():
                        end.send(Abort(victim))
                live = {it for it in live if any(not end.released[it] for end in ends.values())}
                assert not faults
        for stage, end in ends.items():
            assert set(end.released) == set(range(40))
            assert set(end.released.values()) == set(end.done.values()) == {1}
            assert set(end.done) | aborted == set(range(40))
            for key in set(range(40)) - aborted:
                values = [key * 1000 + i for i in range(PIECES)]
                assert end.engine.results[key] == {port: values for _, target, port in EDGES if target == stage}
            end.send(Query(1, "counters"))
            while not end.others:
                end.hear()
            (reply,) = end.others
            assert isinstance(reply, Reply)
            gauges = ("jobs", "early", "arena_used_bytes", "inbox_used_bytes", "credits_outstanding")
            assert {name: reply.value[name] for name in gauges} == dict.fromkeys(gauges, 0)
            assert end.memory.lent == {}
            assert end.memory.opened == []
            if connector == "device":
                assert reply.value["device_used_bytes"] == 0
                assert reply.value["device_links"] == sum(stage in ends_of for ends_of in links)
                assert (reply.value["device_payloads_total"] > 20) is (stage != "c")
