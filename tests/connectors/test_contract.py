"""The guarantees of every backend of a link, on each of them: order, contents, loans, ends, and nothing left."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_actors.connectors.link import LinkClosed
from omni_actors.connectors.packing import pack, place, unpack
from omni_actors.connectors.payload import Payload
from omni_actors.connectors.shared_memory import Arena
from omni_actors.protocol.codec import FrameTooLarge
from omni_actors.protocol.frames import INLINE_LIMIT, Ack, Chunk, TensorMeta

from .ends import BACKENDS, Pair, open_pair, send, take, transfer


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def pair(backend: str) -> Iterator[Pair]:
    with open_pair(backend) as ends:
        yield ends


@pytest.fixture
def arena() -> Iterator[Arena]:
    it = Arena(budget=8 << 20)
    yield it
    it.close()


MATRIX = np.random.default_rng(0).standard_normal((300, 1000)).astype(np.float32)

ARRAYS = [
    np.arange(12, dtype=np.float32).reshape(3, 4),
    np.arange(12, dtype=np.int64)[::2],
    np.asfortranarray(np.arange(12, dtype=np.float64).reshape(3, 4)),
    np.arange(24, dtype=np.int16).reshape(2, 3, 4).transpose(2, 0, 1),
    np.array(3.5, dtype=np.float16),
    np.zeros((0, 4), dtype=np.float32),
    np.array([True, False]),
    np.arange(5, dtype=">i4"),
    np.arange(30_000, dtype=">f8"),
    np.arange(3, dtype=np.complex64),
    np.full((INLINE_LIMIT // 4 + 1,), 1.5, dtype=np.float32),
    MATRIX,
    np.random.default_rng(0).standard_normal((1200, 1000)).astype(np.float64),
]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda a: f"{a.dtype}{a.shape}")
def test_every_dtype_shape_and_stride_arrives_bit_for_bit(array: Any, pair: Pair, arena: Arena) -> None:
    out, _slot = transfer(Payload("x", {"n": 1}, {"a": array, "b": np.arange(3)}), pair, arena)
    assert (out.kind, out.meta) == ("x", {"n": 1})
    assert out.tensors["a"].dtype == array.dtype.newbyteorder("=")
    np.testing.assert_array_equal(out.tensors["a"], array)
    np.testing.assert_array_equal(out.tensors["b"], np.arange(3))


@pytest.mark.parametrize("count", [10, INLINE_LIMIT])
def test_bfloat16_travels_as_bits(count: int, pair: Pair, arena: Arena) -> None:
    bits = np.arange(count, dtype=np.uint32).astype(np.uint16)
    out, _slot = transfer(Payload("x", {}, {"a": bits}, {"a": "bfloat16"}), pair, arena)
    assert out.dtypes == {"a": "bfloat16"}
    np.testing.assert_array_equal(out.tensors["a"], bits)


@pytest.mark.parametrize("size", [3, 100_000])
@pytest.mark.parametrize(
    ("dtype", "name"),
    [("object", None), ([("x", "f4"), ("y", "i4")], None), ("float32", "bfloat16"), ("int8", "uint8")],
)
def test_a_tensor_that_would_arrive_changed_is_refused(dtype: Any, name: str | None, size: int, arena: Arena) -> None:
    payload = Payload("x", {}, {"a": np.zeros(size, dtype)}, {} if name is None else {"a": name})
    with pytest.raises(TypeError):
        pack(payload, arena, 1)
    assert arena.used_bytes == 0


def test_a_payload_written_in_place_arrives_unchanged(pair: Pair, arena: Arena) -> None:
    placed = place("x", {}, {"a": ((300, 1000), "float32"), "b": ((7,), "bfloat16")}, arena)
    assert placed is not None
    placed.tensors["a"][:] = MATRIX
    placed.tensors["b"][:] = 9
    packed = placed.packed(1)
    pair[0].send_chunk(Chunk(7, 0, 0, False, packed.kind, packed.meta, packed.metas), packed.slot)
    (chunk,) = take(pair)
    assert type(chunk) is Chunk
    out = pair[1].payload(chunk)
    assert out is not None
    np.testing.assert_array_equal(out.tensors["a"], MATRIX)
    assert out.dtypes == {"b": "bfloat16"}
    assert (out.tensors["b"] == 9).all()


def test_a_view_cannot_be_written(pair: Pair, arena: Arena) -> None:
    for seq, size in enumerate((10, INLINE_LIMIT)):
        out, _slot = transfer(Payload("x", {}, {"a": np.zeros(size)}), pair, arena, seq)
        with pytest.raises(ValueError, match="read-only"):
            out.tensors["a"][0] = 1


def test_a_loan_stays_as_it_is_until_it_is_acknowledged(pair: Pair, arena: Arena) -> None:
    """The loan holds also when the producer has let go, as with a consumer that was only slow and is believed dead."""
    loans = []
    for seq in range(4):
        out, slot = transfer(Payload("x", {}, {"a": np.full(1 << 18, seq)}), pair, arena, seq)
        loans.append((out, slot))
    pair[1].send_ack(Ack(7, 0, 2))
    for _, slot in loans[:2]:
        arena.release(slot)
    for seq in range(4, 8):
        transfer(Payload("x", {}, {"a": np.full(1 << 18, seq)}), pair, arena, seq)
    for seq in (2, 3):
        assert (loans[seq][0].tensors["a"] == seq).all()


def test_a_loan_outlives_its_producer(pair: Pair) -> None:
    arena = Arena()
    out, _slot = transfer(Payload("x", {}, {"a": np.arange(1 << 20)}), pair, arena)
    pair[0].close()
    arena.close()
    with pytest.raises(LinkClosed):
        pair[1].receive()
    pair[1].close()
    np.testing.assert_array_equal(out.tensors["a"], np.arange(1 << 20))
    pair[1].send_ack(Ack(7, 0, 1))


def test_acknowledgements_go_back_on_the_same_link(pair: Pair, arena: Arena) -> None:
    transfer(Payload("x", {}, {"a": np.zeros(1 << 20)}), pair, arena)
    pair[1].send_ack(Ack(7, 0, 1))
    assert take((pair[1], pair[0])) == [Ack(7, 0, 1)]


def test_the_end_of_the_other_side_is_seen_after_its_last_words(pair: Pair, arena: Arena) -> None:
    pair[0].send_ack(Ack(1, 2, 3))
    pair[0].flush()
    pair[0].close()
    (ack,) = pair[1].receive()
    assert ack == Ack(1, 2, 3)
    with pytest.raises(LinkClosed):
        pair[1].receive()


def test_a_bare_end_and_a_payload_without_tensors_arrive(pair: Pair, arena: Arena) -> None:
    pair[0].send_chunk(Chunk(7, 0, 0, False, "text", {"text": "é"}), None)
    pair[0].send_chunk(Chunk(7, 0, 1, True, "", {}), None)
    text, end = take(pair, 2)
    assert type(text) is type(end) is Chunk
    assert pair[1].payload(text) == Payload("text", {"text": "é"})
    assert (pair[1].payload(end), end.end) == (None, True)


def test_a_chunk_that_cannot_be_sent_leaves_the_link_unchanged(pair: Pair, arena: Arena) -> None:
    for meta, error in (({"x": "y" * (5 << 20)}, FrameTooLarge), ({"x": object()}, TypeError)):
        for size in (10, INLINE_LIMIT):
            with pytest.raises(error):
                send(pair[0], Payload("x", meta, {"a": np.zeros(size)}), arena)
    assert not pair[0].pending
    out, _slot = transfer(Payload("x", {}, {"a": np.arange(INLINE_LIMIT)}), pair, arena)
    np.testing.assert_array_equal(out.tensors["a"], np.arange(INLINE_LIMIT))


def test_output_waits_for_the_socket_and_no_descriptor_leaks(backend: str) -> None:
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    _send_more_than_the_socket_takes(backend)
    assert len(os.listdir("/proc/self/fd")) == before


def _send_more_than_the_socket_takes(backend: str) -> None:
    arena = Arena()
    payloads = [np.full(n, n % 251, dtype=np.uint8) for n in (INLINE_LIMIT, 5 << 20, 100, 9 << 20, 15_000)] * 10
    with open_pair(backend) as pair:
        for seq, array in enumerate(payloads):
            send(pair[0], Payload("x", {}, {"a": array}), arena, seq)
        pair[0].flush()
        assert pair[0].pending
        assert pair[0].written < pair[0].put
        received = 0
        while received < len(payloads):
            for message in take(pair):
                assert type(message) is Chunk
                assert message.seq == received
                out = pair[1].payload(message)
                assert out is not None
                np.testing.assert_array_equal(out.tensors["a"], payloads[received])
                received += 1
                pair[1].send_ack(Ack(7, 0, received))
        assert not pair[0].pending
        assert pair[0].written == pair[0].put
    arena.close()


@pytest.mark.parametrize("backend", BACKENDS)
@settings(max_examples=30, deadline=None)
@given(sizes=st.lists(st.integers(0, 300_000), min_size=1, max_size=8), random=st.randoms())
def test_any_mix_of_sizes_and_releases_keeps_contents(backend: str, sizes: list[int], random: Any) -> None:
    """Releases of the producer's slots come in any order, each after its acknowledgement."""
    arena = Arena(budget=1 << 20)
    live: list[tuple[Any, Payload, int]] = []
    with open_pair(backend) as pair:
        for seq, n in enumerate(sizes):
            out, slot = transfer(Payload("x", {}, {"a": np.full(n, n % 251, dtype=np.uint8)}), pair, arena, seq)
            live.append((slot, out, n))
            if random.random() < 0.5:
                pair[1].send_ack(Ack(7, 0, seq + 1))
                for slot, _, _ in live:
                    if slot is not None:
                        arena.release(slot)
                live.clear()
            for _, payload, n in live:
                assert (payload.tensors["a"] == n % 251).all()
    arena.close()


@pytest.mark.parametrize(
    ("dtype", "shape", "offset", "nbytes"),
    [
        ("float32", (2,), -8, 8),
        ("float32", (2,), 12, 8),
        ("float32", (3,), 0, 8),
        ("float32", (-1,), 0, -4),
        ("float32", (-1, -2), 0, 8),
        ("S0", (2,), 0, 0),
        ("V0", (), 0, 0),
        ("O", (2,), 0, 16),
        ("f4,)4", (2,), 0, 8),
        (",loat32", (2,), 0, 8),
        ("(2,)f4", (1,), 0, 8),
        ("", (0,), 0, 0),
    ],
)
def test_tensors_that_do_not_lie_in_their_payload_are_refused(
    dtype: str, shape: tuple[int, ...], offset: int, nbytes: int
) -> None:
    """The reader raises errors that its caller catches: another process may have written anything."""
    chunk = Chunk(1, 0, 0, False, "x", {}, (TensorMeta("a", dtype, shape, offset, nbytes),), bytes(16))
    with pytest.raises((LookupError, ValueError, TypeError)):
        unpack(chunk, memoryview(bytes(16)))
