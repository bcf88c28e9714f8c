"""Keys and values travel between caches of different blocks, bit for bit."""

from __future__ import annotations

import itertools
import json
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.connectors.ends import BACKENDS, open_pair, take

from omni_actors.connectors.packing import place
from omni_actors.connectors.payload import Payload
from omni_actors.connectors.shared_memory import Arena
from omni_actors.platforms.cpu.kernels import KERNELS
from omni_actors.protocol.frames import Chunk
from omni_actors.worker import kv
from omni_actors.worker.engines.autoregressive.attention import Extent, KVCache, PagedAttention
from omni_actors.worker.engines.autoregressive.decoder import KVShape
from omni_actors.worker.tensors import tensor_payload

SHAPE = KVShape(layers=2, kv_heads=2, head_dim=4, dtype=torch.float32)
LAYOUT = kv.Layout.of(replace(SHAPE, side=8), "model")


def noise(cache: KVCache, seed: int) -> KVCache:
    """Return every kind of bit pattern, NaN included: no code under test may look at the numbers."""
    rng = np.random.default_rng(seed)
    for tensor in [*cache.layers, *([] if cache.side is None else [cache.side])]:
        raw = torch.from_numpy(rng.integers(0, 256, tensor.numel() * tensor.element_size(), dtype=np.uint8))
        tensor.copy_(raw.view(tensor.dtype).view(tensor.shape))
    return cache


def bits(cache: KVCache, blocks: list[int], token: int) -> list[bytes]:
    """Return a cache's content for a token, read in the slowest and simplest way."""
    block, place = blocks[token // cache.block_size], token % cache.block_size
    found = [layer[block, :, place].contiguous().view(torch.uint8).numpy().tobytes() for layer in cache.layers]
    if cache.side is not None:
        found.append(cache.side[block, place].contiguous().view(torch.uint8).numpy().tobytes())
    return found


@st.composite
def transfers(draw: st.DrawFn) -> tuple[KVShape, tuple[int, list[int]], tuple[int, list[int]], list[int]]:
    """A layout, block size and blocks on each side, and the places where the tokens are cut into payloads."""
    tokens = draw(st.integers(1, 40))
    shape = KVShape(
        draw(st.integers(1, 3)),
        draw(st.integers(1, 3)),
        draw(st.sampled_from([1, 4])),
        draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float16])),
        draw(st.sampled_from([0, 3])),
    )

    def table() -> tuple[int, list[int]]:
        size = draw(st.integers(1, 9))
        count = -(-tokens // size)
        return size, draw(st.permutations(range(count + 3)))[: count + draw(st.integers(0, 1))]

    cuts = draw(st.sets(st.integers(0, tokens), max_size=4))
    return shape, table(), table(), sorted({0, tokens, *cuts})


@settings(max_examples=60, deadline=None)
@given(transfers(), st.booleans())
def test_inserted_rows_equal_extracted_rows(
    case: tuple[KVShape, tuple[int, list[int]], tuple[int, list[int]], list[int]], stays: bool
) -> None:
    shape, (source_size, source_blocks), (target_size, target_blocks), cuts = case
    source = noise(KVCache(shape, max(source_blocks) + 1, source_size, torch.device("cpu"), KERNELS), 1)
    target = noise(KVCache(shape, max(target_blocks) + 1, target_size, torch.device("cpu"), KERNELS), 2)
    untouched = [layer.clone() for layer in target.layers]
    for start, end in itertools.pairwise(cuts):
        payload = kv.extract(source, source_blocks, start, end - start)
        if stays:
            rows = kv.gather(source, source_blocks, start, end - start)
            payload = tensor_payload(kv.KIND, payload.meta, rows)
        assert kv.insert(target, target_blocks, payload) == range(start, end)
    for token in range(cuts[-1]):
        assert bits(target, target_blocks, token) == bits(source, source_blocks, token)
    for block in set(range(target.padding + 1)) - set(target_blocks):
        for layer, before in zip(target.layers, untouched, strict=True):
            assert torch.equal(layer[block].view(torch.uint8), before[block].view(torch.uint8))
    for token in range(cuts[-1], len(target_blocks) * target_size):  # behind the end nothing is written
        block, at = target_blocks[token // target_size], token % target_size
        for layer, before in zip(target.layers, untouched, strict=True):
            now, then = layer[block, :, at].contiguous(), before[block, :, at].contiguous()
            assert torch.equal(now.view(torch.uint8), then.view(torch.uint8))


def test_rows_are_where_attention_puts_and_finds_them() -> None:
    cache = KVCache(SHAPE, 4, 3, torch.device("cpu"), KERNELS)
    blocks, count = [2, 0], 5
    key_value = torch.randn(count, 2 * SHAPE.kv_heads, SHAPE.head_dim)
    attention = PagedAttention(cache, [Extent(0, count, blocks)])
    for layer in range(SHAPE.layers):
        attention.attend(layer, torch.randn(count, 4, SHAPE.head_dim), key_value * (layer + 1), 1.0)
    rows = kv.extract(cache, blocks, 0, count).tensors["rows"]
    for layer in range(SHAPE.layers):
        assert torch.equal(torch.from_numpy(rows[layer]), (key_value * (layer + 1)).transpose(0, 1))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_are_read_where_they_arrive(dtype: torch.dtype, backend: str) -> None:
    """Rows are written where they leave from, and memory that is lent is read without a copy and never written."""
    shape = KVShape(layers=2, kv_heads=2, head_dim=64, dtype=dtype, side=8)
    source = noise(KVCache(shape, 20, 16, torch.device("cpu"), KERNELS), 3)
    target = noise(KVCache(shape, 90, 4, torch.device("cpu"), KERNELS), 4)
    blocks, others, count = list(range(20)), list(range(89, 9, -1)), 300
    arena = Arena()
    try:
        with open_pair(backend) as pair:
            placed = place(kv.KIND, {"start": 0, "tokens": count}, kv.specs(shape, count), arena)
            assert placed is not None
            kv.fill(source, blocks, placed)
            packed = placed.packed(1)
            pair[0].send_chunk(Chunk(7, 0, 0, False, packed.kind, packed.meta, packed.metas, packed.data), packed.slot)
            (chunk,) = take(pair)
            assert type(chunk) is Chunk
            received = pair[1].payload(chunk)
            assert received is not None
            assert not received.tensors["rows"].flags.writeable
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                kv.insert(target, others, received)
    finally:
        arena.close()
    for token in range(count):
        assert bits(target, others, token) == bits(source, blocks, token)


def test_rows_that_do_not_belong_are_refused() -> None:
    source, target = (KVCache(SHAPE, 4, 4, torch.device("cpu"), KERNELS) for _ in range(2))
    good = kv.extract(source, [0, 1], 0, 6)
    with pytest.raises(ValueError, match="do not fit 1 blocks"):
        kv.insert(target, [3], good)
    with pytest.raises(ValueError, match="rows"):
        kv.insert(target, [0, 1], Payload(kv.KIND, good.meta, {"rows": good.tensors["rows"][:1]}))
    with pytest.raises(ValueError, match="rows"):
        kv.insert(target, [0, 1], Payload(kv.KIND, good.meta, {"rows": good.tensors["rows"].astype(np.float16)}))
    other = KVCache(replace(SHAPE, side=2), 4, 4, torch.device("cpu"), KERNELS)
    with pytest.raises(ValueError, match="side: nothing"):
        kv.insert(other, [0, 1], good)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"layers": 3}, "layers 3 instead of 2"),
        ({"kv_heads": 1}, "kv_heads 1 instead of 2"),
        ({"head_dim": 8}, "head_dim 8 instead of 4"),
        ({"dtype": "bfloat16"}, "dtype 'bfloat16' instead of 'float32'"),
        ({"side": 7}, "side 7 instead of 8"),
        ({"model": "other"}, "model 'other' instead of 'model'"),
    ],
)
def test_a_different_layout_is_described(change: dict[str, object], says: str) -> None:
    asked = kv.ask(3, replace(LAYOUT, **change)).meta["layout"]  # type: ignore[arg-type]
    assert LAYOUT.difference(asked) == says
    assert LAYOUT.difference(kv.ask(3, LAYOUT).meta["layout"]) == ""
    assert "layers None" in LAYOUT.difference({})


def test_unneeded_side_vectors_are_ignored() -> None:
    """A deployment without the next stage: only the first half of the pipeline knows of the side vectors."""
    source = noise(KVCache(replace(SHAPE, side=8), 4, 4, torch.device("cpu"), KERNELS), 1)
    target = KVCache(SHAPE, 4, 4, torch.device("cpu"), KERNELS)
    assert kv.Layout.of(SHAPE, "model").difference(kv.ask(3, LAYOUT).meta["layout"]) == ""
    kv.insert(target, [0, 1], kv.extract(source, [2, 3], 0, 6))
    for token in range(6):
        assert bits(target, [0, 1], token) == bits(source, [2, 3], token)[:-1]


def test_a_models_identity_is_its_content(tmp_path: Path) -> None:
    def folder(name: str, config: str, weights: bytes) -> str:
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(config)
        (tmp_path / name / "model.safetensors").write_bytes(weights)
        return str(tmp_path / name)

    config = json.dumps({"a": 1, "b": 2})
    first = kv.model_identity(folder("first", config, b"x" * 9000 + b"1"), "adapter")
    assert kv.model_identity(folder("copy", '{"b": 2,\n "a": 1}', b"x" * 9000 + b"1"), "adapter") == first
    assert kv.model_identity(folder("tuned", config, b"x" * 9000 + b"2"), "adapter") != first
    assert kv.model_identity(folder("other", '{"a": 2}', b"x" * 9000 + b"1"), "adapter") != first
    assert kv.model_identity(str(tmp_path / "first"), "another adapter") != first
    assert kv.model_identity(None, "adapter") == kv.model_identity(str(tmp_path / "none"), "adapter")
