"""Payloads over a link: inline, in sealed slabs, with descriptors that travel by themselves."""

from __future__ import annotations

import mmap
import os
import socket
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_actors.connectors.link import Link, LinkClosed, pack, unpack
from omni_actors.connectors.payload import Payload
from omni_actors.connectors.shared_memory import Arena
from omni_actors.protocol.frames import INLINE_LIMIT, Ack, Chunk, SlabRef

Pair = tuple[Link, Link]


@pytest.fixture
def pair() -> Iterator[Pair]:
    a, b = socket.socketpair()
    ends = Link(1, "b", a), Link(1, "a", b)
    yield ends
    for end in ends:
        end.close()


@pytest.fixture
def arena() -> Iterator[Arena]:
    it = Arena(budget=8 << 20)
    yield it
    it.close()


def chunk_of(payload: Payload, arena: Arena, seq: int = 0) -> tuple[Chunk, Any]:
    metas, data, slot = pack(payload, arena, 1)
    ref = None if slot is None else SlabRef(slot.slab.id, slot.offset, False)
    return Chunk(7, 0, seq, False, payload.kind, payload.meta, metas, data, ref), slot


def transfer(payload: Payload, pair: Pair, arena: Arena) -> tuple[Payload, Any]:
    chunk, slot = chunk_of(payload, arena)
    pair[0].send_chunk(chunk, arena)
    pair[0].flush()
    (received,) = pair[1].receive()
    assert type(received) is Chunk
    out = unpack(received, pair[1].views)
    assert out is not None
    return out, slot


ARRAYS = [
    np.arange(12, dtype=np.float32).reshape(3, 4),
    np.arange(12, dtype=np.int64)[::2],
    np.asfortranarray(np.arange(12, dtype=np.float64).reshape(3, 4)),
    np.arange(24, dtype=np.int16).reshape(2, 3, 4).transpose(2, 0, 1),
    np.array(3.5, dtype=np.float16),
    np.zeros((0, 4), dtype=np.float32),
    np.array([True, False]),
    np.full((INLINE_LIMIT // 4 + 1,), 1.5, dtype=np.float32),
    np.random.default_rng(0).standard_normal((300, 1000)).astype(np.float32),
]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda a: f"{a.dtype}{a.shape}")
def test_every_dtype_shape_and_stride_arrives_bit_for_bit(array: Any, pair: Pair, arena: Arena) -> None:
    out, _slot = transfer(Payload("x", {"n": 1}, {"a": array, "b": np.arange(3)}), pair, arena)
    assert (out.kind, out.meta) == ("x", {"n": 1})
    assert out.tensors["a"].dtype == array.dtype
    np.testing.assert_array_equal(out.tensors["a"], array)
    np.testing.assert_array_equal(out.tensors["b"], np.arange(3))


def test_bfloat16_travels_as_bits(pair: Pair, arena: Arena) -> None:
    bits = np.arange(10, dtype=np.uint16)
    out, _slot = transfer(Payload("x", {}, {"a": bits}, {"a": "bfloat16"}), pair, arena)
    assert out.dtypes == {"a": "bfloat16"}
    np.testing.assert_array_equal(out.tensors["a"], bits)


def test_a_view_cannot_be_written(pair: Pair, arena: Arena) -> None:
    for size in (10, INLINE_LIMIT):
        out, _slot = transfer(Payload("x", {}, {"a": np.zeros(size)}), pair, arena)
        with pytest.raises(ValueError, match="read-only"):
            out.tensors["a"][0] = 1


def test_a_consumer_can_neither_map_a_slab_writable_nor_resize_it(arena: Arena) -> None:
    slot = arena.allocate(1 << 20)
    fd = os.dup(arena.fd(slot.slab.id))
    try:
        with pytest.raises(PermissionError):
            mmap.mmap(fd, 0)
        with pytest.raises(PermissionError):
            os.ftruncate(fd, 0)
        with pytest.raises(PermissionError):
            os.ftruncate(fd, 64 << 20)
    finally:
        os.close(fd)


def test_a_released_slot_serves_the_next_payload_of_its_class(arena: Arena) -> None:
    first = arena.allocate(1 << 20)
    arena.release(first)
    assert arena.allocate((1 << 20) - 5) is first
    assert arena.bytes == 4 << 20


def test_beyond_its_budget_the_arena_is_pressed_and_shrinks_again(arena: Arena) -> None:
    slots = [arena.allocate(4 << 20) for _ in range(4)]
    assert arena.pressed
    assert arena.bytes == 16 << 20
    for slot in slots:
        arena.release(slot)
    assert not arena.pressed
    assert arena.used_bytes == 0
    assert arena.bytes <= arena.budget


def test_views_outlive_their_producer(pair: Pair) -> None:
    arena = Arena()
    out, _slot = transfer(Payload("x", {}, {"a": np.arange(1 << 20)}), pair, arena)
    pair[0].close()
    arena.close()
    np.testing.assert_array_equal(out.tensors["a"], np.arange(1 << 20))


def test_the_end_of_the_other_side_is_seen_after_its_last_words(pair: Pair, arena: Arena) -> None:
    pair[0].send_ack(Ack(1, 2, 3))
    pair[0].flush()
    pair[0].close()
    (ack,) = pair[1].receive()
    assert ack == Ack(1, 2, 3)
    with pytest.raises(LinkClosed):
        pair[1].receive()


def test_what_the_socket_does_not_take_waits_and_no_descriptor_leaks() -> None:
    before = len(os.listdir("/proc/self/fd"))
    _send_more_than_the_socket_takes()
    assert len(os.listdir("/proc/self/fd")) == before


def _send_more_than_the_socket_takes() -> None:
    a, b = socket.socketpair()
    pair = Link(1, "b", a), Link(1, "a", b)
    arena = Arena()
    payloads = [np.full(n, n % 251, dtype=np.uint8) for n in (60_000, 5 << 20, 100, 9 << 20, 50_000)] * 10
    held = []
    for seq, array in enumerate(payloads):
        chunk, slot = chunk_of(Payload("x", {}, {"a": array}), arena, seq)
        held.append(slot)
        pair[0].send_chunk(chunk, arena)
    received = 0
    while received < len(payloads):
        pair[0].flush()
        for message in pair[1].receive():
            assert type(message) is Chunk
            assert message.seq == received
            out = unpack(message, pair[1].views)
            assert out is not None
            np.testing.assert_array_equal(out.tensors["a"], payloads[received])
            received += 1
    assert not pair[0].pending
    for end in pair:
        end.close()
    arena.close()


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 300_000), min_size=1, max_size=8), st.randoms())
def test_any_mix_of_sizes_and_releases_keeps_contents(sizes: list[int], random: Any) -> None:
    a, b = socket.socketpair()
    left, right = Link(1, "b", a), Link(1, "a", b)
    arena = Arena(budget=1 << 20)
    live: list[tuple[Any, Payload, int]] = []
    try:
        for n in sizes:
            out, slot = transfer(Payload("x", {}, {"a": np.full(n, n % 251, dtype=np.uint8)}), (left, right), arena)
            live.append((slot, out, n))
            if random.random() < 0.5:
                slot, _out, _n = live.pop(random.randrange(len(live)))
                if slot is not None:
                    arena.release(slot)
            for _slot, payload, n in live:
                assert (payload.tensors["a"] == n % 251).all()
    finally:
        left.close()
        right.close()
        arena.close()
