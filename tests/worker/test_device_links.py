"""A worker whose input lies on a device: the fate of a request when the memory behind its input goes."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from tests.connectors.fake_device import Memory, Tensor

from omni_actors.connectors.device import DeviceLink, Exports
from omni_actors.connectors.payload import DeviceTensors, Payload
from omni_actors.connectors.shared_memory import Arena
from omni_actors.protocol.codec import frame, up_reader
from omni_actors.protocol.frames import PROTOCOL_VERSION, Chunk, EdgeSpec, Hello, Step, Submit, Up, Wire
from omni_actors.worker.engine import Engine, Outbox, Work
from omni_actors.worker.loop import Worker


class Taking(Engine):
    """An engine that consumes its input at once, or keeps the input unchanged."""

    def __init__(self, hello: Hello, *, at_once: bool) -> None:
        super().__init__(hello)
        self.at_once = at_once
        self.got: list[Payload] = []
        self.aborted: list[int] = []

    def load(self, progress: Callable[[str, float | None], None]) -> dict[str, Any]:
        return {}

    def admit(self, work: Work) -> None: ...

    def feed(self, key: int, port: str, payload: Payload | None, end: bool) -> bool:
        assert payload is not None
        self.got.append(payload)
        return self.at_once

    def abort(self, key: int) -> None:
        self.aborted.append(key)

    @property
    def runnable(self) -> bool:
        return False

    def step(self, out: Outbox) -> bool:
        return False


class Bench:
    """A worker of stage b in this thread, and the producer of its input, a's end of the link."""

    def __init__(self, *, at_once: bool) -> None:
        edge = EdgeSpec(index=0, source="a", target="b", port="x", kind="x", mode="chunk", connector="device")
        hello = Hello(
            version=PROTOCOL_VERSION, stage="b", replica=0, incarnation=1, engine="", adapter="", inputs=(edge,)
        )
        lent: dict[bytes, Tensor] = {}
        self.ours, self.theirs = Memory(lent), Memory(lent)
        self.engine = Taking(hello, at_once=at_once)
        self.control, control = socket.socketpair()
        self.control.settimeout(5)
        self.worker = Worker(control, hello, self.engine, {}, memory=self.theirs)
        mine, peers = socket.socketpair()
        self.link = DeviceLink(7, "b#0@1", mine, "a", self.ours)
        socket.send_fds(self.control, [frame(Wire(7, "a#0@1"))], [peers.fileno()])
        peers.close()
        self.control.sendall(frame(Submit(1, "r", {}, ("x",), (), False)))
        self.exports, self.arena = Exports(self.ours, 1 << 20), Arena()
        for _ in range(2):
            self.link.flush()
            self.worker.turn(5)
            self.link.receive()
        assert self.link.direct

    def send(self, value: float) -> None:
        payload = Payload("x", {}, DeviceTensors({"a": Tensor(np.full(8192, value, np.float32))}))
        packed = self.exports.pack(payload, self.arena, 1)
        assert packed is not None
        self.link.send_chunk(Chunk(1, 0, 0, False, packed.kind, packed.meta, device=packed.device), None)
        self.link.flush()

    def told(self) -> list[Up]:
        self.worker.turn(5)
        self.control.setblocking(False)
        try:
            return up_reader().feed(self.control.recv(1 << 20))
        except BlockingIOError:
            return []

    def close(self) -> None:
        self.link.close()
        self.worker.close()
        self.arena.close()
        self.control.close()


@pytest.fixture(params=[True, False], ids=["consumed", "kept"])
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    it = Bench(at_once=request.param)
    yield it
    it.close()


def failures(told: list[Up]) -> list[tuple[int, str | None, str | None]]:
    return [(it.key, it.error.code, it.error.stage) for step in told if isinstance(step, Step) for it in step.failed]


def test_device_payloads_not_taken_over_are_lost_with_their_producer_and_others_are_not(bench: Bench) -> None:
    bench.send(5)
    assert bench.told() == []
    assert bench.engine.got[0].tensors["a"][0] == 5
    bench.link.close()
    if bench.engine.at_once:
        assert failures(bench.told()) == []
    else:
        assert failures(bench.told()) == [(1, "link_lost", "b")]
        assert bench.engine.aborted == [1]
    assert bench.theirs.opened == []


def test_a_handle_without_memory_fails_its_request_alone(bench: Bench) -> None:
    bench.send(5)
    bench.ours.lent.clear()
    assert failures(bench.told()) == [(1, "link_lost", "b")]
    bench.link.receive()
    assert not bench.link.direct  # the producer does not rely on it any more
    assert bench.engine.got == []
