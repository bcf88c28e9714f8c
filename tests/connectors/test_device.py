"""Links on which tensors stay on the device. The device here is host memory: a handle is a name in a table."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from omni_actors.connectors.device import DeviceLink, Exports
from omni_actors.connectors.link import Link
from omni_actors.connectors.packing import Packed
from omni_actors.connectors.payload import DeviceTensors, Payload, held_tensors
from omni_actors.connectors.shared_memory import Arena
from omni_actors.connectors.unix import UnixLink
from omni_actors.protocol.errors import OmniError
from omni_actors.protocol.frames import Ack, Chunk

from .ends import wait
from .fake_device import Memory, Tensor

LARGE = 8192  # float32 numbers: over the limit of what rides in a frame


@dataclass
class Bench:
    """A producer of stage a and a consumer of stage b."""

    ours: Memory
    theirs: Memory
    producer: Link
    consumer: Link
    arena: Arena = field(default_factory=Arena)

    def __post_init__(self) -> None:
        self.exports = Exports(self.ours, 1 << 20)

    def settle(self) -> None:
        """Let each end receive the other's first frames."""
        ends = (self.producer, self.consumer)
        for one, other in (ends, ends[::-1], ends):
            one.flush()
            wait(other)
            assert other.receive() == []

    def send(self, payload: Payload, seq: int = 0) -> Packed:
        packed = self.exports.pack(payload, self.arena, 1)
        assert packed is not None
        chunk = Chunk(7, 0, seq, False, packed.kind, packed.meta, packed.metas, packed.data, device=packed.device)
        self.producer.send_chunk(chunk, packed.slot)
        return packed

    def take(self) -> Chunk:
        self.producer.flush()
        wait(self.consumer)
        (chunk,) = self.consumer.receive()
        assert isinstance(chunk, Chunk)
        return chunk


def open_bench(ours: Memory | None = None, theirs: Memory | None = None, *, plain: bool = False) -> Bench:
    lent: dict[bytes, Tensor] = {}
    ours, theirs = ours or Memory(lent), theirs or Memory(lent)
    theirs.lent = ours.lent
    a, b = socket.socketpair()
    producer = DeviceLink(1, "b#0@1", a, "a", ours)
    consumer: Link = UnixLink(1, "a#0@1", b) if plain else DeviceLink(1, "a#0@1", b, "b", theirs)
    return Bench(ours, theirs, producer, consumer)


@pytest.fixture
def bench() -> Iterator[Bench]:
    it = open_bench()
    it.settle()
    yield it
    it.producer.close()
    it.consumer.close()
    it.arena.close()


def hidden(**more: np.ndarray[Any, Any]) -> Payload:
    states = Tensor(np.random.default_rng(3).standard_normal(LARGE, np.float32))
    return Payload("hidden", {"n": 5}, DeviceTensors({"states": states}, more))


def test_tensors_stay_where_they_are(bench: Bench) -> None:
    payload = hidden(ids=np.arange(3))
    bench.send(payload)
    got = bench.consumer.payload(bench.take())
    assert got is not None
    assert (got.kind, got.meta, set(got.tensors)) == ("hidden", {"n": 5}, {"states", "ids"})
    there = held_tensors(got)["states"]
    assert isinstance(there, Tensor)
    assert there.fetched == 0
    np.testing.assert_array_equal(got.tensors["states"], payload.tensors["states"])
    np.testing.assert_array_equal(got.tensors["ids"], np.arange(3))
    assert there.fetched == 1
    assert bench.arena.used_bytes == 0  # nothing went by the host


def test_the_acknowledgement_gives_everything_back(bench: Bench) -> None:
    packed = []
    for seq in range(2):
        packed.append(bench.send(hidden(), seq))
        bench.consumer.payload(bench.take())
    assert len(bench.theirs.opened) == 2
    assert bench.exports.used_bytes == 2 * 4 * LARGE
    bench.consumer.send_ack(Ack(7, 0, 1))
    assert len(bench.theirs.opened) == 1
    assert bench.consumer.invalidated() == {7}
    bench.consumer.send_ack(Ack(7, 0, 2))
    assert bench.theirs.opened == []
    assert bench.consumer.invalidated() == set()
    for it in packed:
        for export in it.exports:
            bench.exports.release(export)
    assert bench.exports.used_bytes == 0
    assert bench.ours.lent == {}


@pytest.mark.parametrize("plain", [True, False], ids=["no device", "another device"])
def test_an_end_that_cannot_open_handles_is_known_before_any_payload(plain: bool) -> None:
    it = open_bench(theirs=Memory({}, "d1", frozenset({"d1"})), plain=plain)
    it.producer.flush()
    wait(it.consumer)
    it.consumer.receive()
    it.consumer.flush()
    wait(it.producer)
    assert it.producer.receive() == []
    assert not it.producer.direct
    it.producer.close()
    it.consumer.close()
    assert it.ours.lent == {}  # the probe is nobody's any more


def test_a_handle_that_cannot_be_opened_fails_its_request_and_ends_direct_transfer(bench: Bench) -> None:
    bench.send(hidden())
    chunk = bench.take()
    bench.ours.lent.clear()  # as the death of its process does
    with pytest.raises(OmniError) as caught:
        bench.consumer.payload(chunk)
    assert (caught.value.info.code, caught.value.info.stage) == ("link_lost", "b")
    assert bench.producer.direct
    bench.consumer.flush()
    wait(bench.producer)
    bench.producer.receive()
    assert not bench.producer.direct


def test_small_tensors_and_tensors_of_another_device_go_through_the_host(bench: Bench) -> None:
    here, there = Tensor(np.ones(4, np.float32)), Tensor(np.ones(LARGE, np.float32), "d1")
    assert bench.exports.pack(Payload("x", {}, DeviceTensors({"a": here, "b": there})), bench.arena, 1) is None
    assert bench.exports.pack(Payload("x", {}, {"a": np.ones(LARGE)}), bench.arena, 1) is None


def test_a_full_device_falls_back_to_the_host(bench: Bench) -> None:
    two = {name: Tensor(np.ones(size, np.float32)) for name, size in (("a", LARGE), ("b", 2 * LARGE))}
    bench.ours.capacity = 4 * LARGE
    assert bench.exports.pack(Payload("x", {}, DeviceTensors(two)), bench.arena, 1) is None
    assert bench.exports.used_bytes == 0
    assert bench.ours.lent == {}


def test_an_export_is_free_when_its_last_reader_is_done(bench: Bench) -> None:
    packed = bench.exports.pack(hidden(), bench.arena, 2)
    assert packed is not None
    (export,) = packed.exports
    bench.exports.release(export)
    assert len(bench.ours.lent) == 1
    bench.exports.release(export)
    assert bench.ours.lent == {}


def test_a_tensor_that_is_not_as_announced_is_refused(bench: Bench) -> None:
    packed = bench.send(hidden())
    bench.ours.lent[packed.exports[0].handle] = Tensor(np.ones(3, np.float32))
    with pytest.raises(ValueError, match="announced"):
        bench.consumer.payload(bench.take())


def test_a_copy_of_a_payload_is_on_the_same_device() -> None:
    payload = hidden(ids=np.arange(3))
    copied = payload.copy()
    there = held_tensors(copied)["states"]
    assert isinstance(there, Tensor)
    payload.tensors["states"][:] = 0
    payload.tensors["ids"][:] = 0
    assert there.array.any()
    assert copied.tensors["ids"].any()
    assert there.fetched == 0
    assert copied.nbytes == payload.nbytes == 4 * LARGE + 24
