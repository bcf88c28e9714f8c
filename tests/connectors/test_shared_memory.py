"""Sealed slabs: the rights of their users, their growth and shrinking, and the cost of reuse."""

from __future__ import annotations

import mmap
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest

from omni_actors.connectors.link import LinkClosed
from omni_actors.connectors.payload import Payload
from omni_actors.connectors.shared_memory import SLAB_BYTES, Arena
from omni_actors.protocol.frames import INLINE_LIMIT, Ack, Chunk

from .ends import open_pair, send


@pytest.fixture
def arena() -> Iterator[Arena]:
    it = Arena(budget=8 << 20)
    yield it
    it.close()


def test_a_consumer_can_neither_map_a_slab_writable_nor_resize_it(arena: Arena) -> None:
    slot = arena.allocate(1 << 20)
    fd = os.dup(slot.slab.fd)
    try:
        with pytest.raises(PermissionError):
            mmap.mmap(fd, 0)
        with pytest.raises(PermissionError):
            os.ftruncate(fd, 0)
        with pytest.raises(PermissionError):
            os.ftruncate(fd, 64 << 20)
        with pytest.raises(PermissionError):
            os.pwrite(fd, b"x", 0)
    finally:
        os.close(fd)


def test_a_released_slot_serves_the_next_payload_of_its_class(arena: Arena) -> None:
    first = arena.allocate(1 << 20)
    arena.release(first)
    assert arena.allocate((1 << 20) - 5) is first
    assert arena.bytes == SLAB_BYTES


def test_beyond_its_budget_the_arena_is_pressed_and_shrinks_again(arena: Arena) -> None:
    slots = [arena.allocate(4 << 20) for _ in range(4)]
    assert arena.pressed
    assert arena.bytes == 16 << 20
    for slot in slots:
        arena.release(slot)
    assert not arena.pressed
    assert arena.used_bytes == 0
    assert arena.bytes <= arena.budget
    assert len(arena.closed) == 2


def test_an_idle_arena_keeps_only_used_slabs(arena: Arena) -> None:
    kept, freed = arena.allocate(1 << 20), arena.allocate(8 << 20)
    arena.release(freed)
    arena.give_back()
    assert (arena.bytes, arena.used_bytes) == (SLAB_BYTES, 1 << 20)
    assert arena.closed == [freed.slab.id]
    arena.release(kept)
    arena.give_back()
    assert arena.bytes == 0
    assert arena.allocate(1 << 20).slab.id not in arena.closed


def test_empty_slabs_of_other_classes_make_room(arena: Arena) -> None:
    for size in (1, 2, 4, 8, 1, 2):
        arena.release(arena.allocate(size << 20))
        assert arena.bytes <= arena.budget


def test_a_slot_with_two_readers_is_free_when_both_have_let_go(arena: Arena) -> None:
    slot = arena.allocate(1 << 20)
    slot.readers = 2
    arena.release(slot)
    assert arena.used_bytes == 1 << 20
    assert arena.allocate(1 << 20) is not slot
    arena.release(slot)
    assert arena.used_bytes == 1 << 20


def test_reuse_of_a_slot_costs_no_page_fault(arena: Arena) -> None:
    data = np.ones(4 << 20, np.uint8)

    def faults_of_a_write() -> int:
        slot = arena.allocate(data.nbytes)
        target = np.frombuffer(slot.view(data.nbytes), np.uint8)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        np.copyto(target, data)
        after = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        arena.release(slot)
        return after - before

    pages = data.nbytes // mmap.PAGESIZE
    if faults_of_a_write() < pages // 2:
        pytest.skip("memory comes in larger pages here")
    assert faults_of_a_write() < pages // 50


READER = """
import select, socket, sys
from omni_actors.connectors.unix import UnixLink
link = UnixLink(1, "producer", socket.socket(fileno=int(sys.argv[1])))
select.select([link], [], [])
(chunk,) = link.receive()
held = link.payload(chunk).tensors["a"]
sys.stdin.readline()  # the producer is dead by now
print(int(held.sum()), flush=True)
"""

WRITER = """
import os, signal, socket, sys
import numpy as np
from omni_actors.connectors.packing import pack
from omni_actors.connectors.payload import Payload
from omni_actors.connectors.payload import Payload
from omni_actors.connectors.shared_memory import Arena
from omni_actors.connectors.unix import UnixLink
from omni_actors.protocol.frames import Chunk
link = UnixLink(1, "consumer", socket.socket(fileno=int(sys.argv[1])))
packed = pack(Payload("x", {}, {"a": np.arange(1 << 20)}), Arena(), 1)
link.send_chunk(Chunk(7, 0, 0, False, "x", {}, packed.metas), packed.slot)
link.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_view_outlives_the_process_that_wrote_it() -> None:
    a, b = socket.socketpair()
    with a, b:
        command = [sys.executable, "-c"]
        reader = subprocess.Popen(
            [*command, READER, str(b.fileno())],
            pass_fds=[b.fileno()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        writer = subprocess.run([*command, WRITER, str(a.fileno())], pass_fds=[a.fileno()], timeout=20)
        assert writer.returncode == -9
        out, _ = reader.communicate("go\n", timeout=20)
    assert int(out) == sum(range(1 << 20))


def test_slabs_have_no_name_and_are_not_inherited() -> None:
    arena = Arena()
    before = set(os.listdir("/dev/shm"))
    slot = arena.allocate(1 << 20)
    assert set(os.listdir("/dev/shm")) == before
    assert not os.get_inheritable(slot.slab.fd)
    arena.close()


def test_a_slab_unknown_to_its_reader_is_not_announced_as_closed() -> None:
    arena = Arena(budget=1 << 20)
    with open_pair("unix") as (producer, _consumer):
        packed = send(producer, Payload("x", {}, {"a": np.zeros(1 << 18)}), arena)
        assert packed.slot is not None
        assert not producer.forget([packed.slot.slab.id + 1])
        assert producer.forget([packed.slot.slab.id])
    arena.close()


def test_the_last_frames_of_a_process_with_unread_input_arrive() -> None:
    """The kernel reports such an end as an error, once."""
    arena = Arena()
    with open_pair("unix") as (producer, consumer):
        consumer.send_ack(Ack(1, 2, 3))
        consumer.flush()
        send(producer, Payload("x", {}, {"a": np.arange(INLINE_LIMIT)}), arena)
        producer.flush()
        producer.close()
        (chunk,) = consumer.receive()
        assert isinstance(chunk, Chunk)
        out = consumer.payload(chunk)
        assert out is not None
        np.testing.assert_array_equal(out.tensors["a"], np.arange(INLINE_LIMIT))
        with pytest.raises(LinkClosed):
            consumer.receive()
    arena.close()
