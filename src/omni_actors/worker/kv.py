"""Keys and values as a payload: parts of one paged cache, as rows for any other cache of the same layout.

The payloads have kind :data:`KIND`, on an edge whose capacity is 1. The producer first *asks* (:func:`ask`): the
payload states the number of tokens to come, and their layout. The consumer leaves the payload unconsumed until blocks
for all tokens are reserved, so that the producer begins only then: the producer has no other credit. Next come *rows*
(:func:`fill`), in order of position, each payload with a range of tokens: ``rows`` [layers, 2 * kv_heads, tokens,
head_dim], keys' heads before values' heads, and ``side`` [tokens, width] where the layout has side vectors. A row does
not depend on how either cache is cut into blocks: block sizes and ids are each cache's own. The bits are those of the
cache. The last payload may hold more, by agreement of the two stages (for an autoregressive stage see
:mod:`omni_actors.worker.engines.autoregressive.disaggregation`).

A payload on its way is a lease: the memory is the producer's, copied out of the blocks, and is free again when the
consumer has acknowledged the payload, or is gone, or the request is over. The consumer's reserved blocks go back with
the request.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from omni_actors.connectors.payload import Payload, TensorSpecs, blank_payload, held_tensors, numpy_dtype
from omni_actors.worker.engines.autoregressive.attention import KVCache
from omni_actors.worker.engines.autoregressive.decoder import KVShape
from omni_actors.worker.tensors import TorchTensor

KIND = "kv"

_SAMPLE = 4096
"""Bytes at the end of each weights file that count for a model's identity."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The fingerprint of rows: a cache takes in only rows of its own layout. ``model`` is the identity of the model
    that computed the rows (:func:`model_identity`): keys of another model would be read without complaint."""

    layers: int
    kv_heads: int
    head_dim: int
    side: int
    dtype: str
    model: str

    @classmethod
    def of(cls, shape: KVShape, model: str) -> Layout:
        dtype = str(shape.dtype).removeprefix("torch.")
        return cls(shape.layers, shape.kv_heads, shape.head_dim, shape.side, dtype, model)

    def difference(self, other: Mapping[str, Any]) -> str:
        """Return why rows of the layout ``other`` (in its form on the wire) do not fit a cache of this layout; empty if
        they fit. Unneeded side vectors are ignored."""
        wanted = asdict(self) if self.side else {k: v for k, v in asdict(self).items() if k != "side"}
        return ", ".join(f"{k} {other.get(k)!r} instead of {v!r}" for k, v in wanted.items() if other.get(k) != v)


def model_identity(folder: str | None, adapter: str) -> str:
    """Return a digest that identifies a model by the content of its folder: the configuration, and the name, size and
    last bytes of each weights file. The folder's path does not count, so that two machines agree. Without a folder only
    the adapter's name counts."""
    digest = hashlib.blake2b(adapter.encode(), digest_size=12)
    root = Path(folder) if folder else None
    if root is not None and (config := root / "config.json").is_file():
        digest.update(json.dumps(json.loads(config.read_bytes()), sort_keys=True).encode())
    for file in sorted(root.glob("*.safetensors")) if root is not None else ():
        with file.open("rb") as opened:
            size = opened.seek(0, 2)
            opened.seek(max(0, size - _SAMPLE))
            digest.update(f"{file.name}:{size}:".encode() + opened.read())
    return digest.hexdigest()


def ask(tokens: int, layout: Layout) -> Payload:
    """Return the first payload, which asks for room for ``tokens`` tokens."""
    return Payload(KIND, {"ask": tokens, "layout": asdict(layout)})


def specs(shape: KVShape, count: int) -> TensorSpecs:
    """Return the tensors of a payload with the rows of ``count`` tokens."""
    dtype = str(shape.dtype).removeprefix("torch.")
    rows = (shape.layers, 2 * shape.kv_heads, count, shape.head_dim)
    return {"rows": (rows, dtype)} | ({"side": ((count, shape.side), dtype)} if shape.side else {})


@torch.inference_mode()
def fill(cache: KVCache, blocks: Sequence[int], payload: Payload) -> None:
    """Write the rows of the sequence in ``blocks``, at the positions in ``payload`` (``start``, ``tokens``), into the
    payload's tensors, which may be memory mapped by the consumer."""
    tensors = {name: _view(payload, name, cache.shape.dtype) for name in specs(cache.shape, 0)}
    _fill(cache, blocks, payload.meta["start"], payload.meta["tokens"], tensors)


@torch.inference_mode()
def gather(cache: KVCache, blocks: Sequence[int], start: int, count: int) -> dict[str, torch.Tensor]:
    """Return the same rows as tensors on the cache's device, for a payload that need not leave the device."""
    device = cache.layers[0].device
    made = specs(cache.shape, count)
    tensors = {name: torch.empty(size, dtype=cache.shape.dtype, device=device) for name, (size, _) in made.items()}
    _fill(cache, blocks, start, count, tensors)
    return tensors


def extract(cache: KVCache, blocks: Sequence[int], start: int, count: int) -> Payload:
    """Return tokens ``start … start + count - 1`` of the sequence in these blocks, in memory of their own."""
    payload = blank_payload(KIND, {"start": start, "tokens": count}, specs(cache.shape, count))
    fill(cache, blocks, payload)
    return payload


@torch.inference_mode()
def insert(cache: KVCache, blocks: Sequence[int], payload: Payload) -> range:
    """Write a payload's rows into ``blocks``, at their positions in the sequence, and return the positions.

    Raises :class:`ValueError` for rows of another shape or dtype, or for more rows than the blocks hold.
    """
    shape, device = cache.shape, cache.layers[0].device
    start, count = int(payload.meta["start"]), int(payload.meta["tokens"])
    if not 0 <= start <= start + count <= len(blocks) * cache.block_size:
        raise ValueError(f"tokens {start} to {start + count} do not fit {len(blocks)} blocks of {cache.block_size}")
    for name, (size, dtype) in specs(shape, count).items():
        if (found := _difference(payload, name, size, dtype)) is not None:
            raise ValueError(f"{name}: {found}, where {dtype} {list(size)} belongs")
    token_rows, page_rows = _rows(cache, blocks, start, count)
    for target, source in zip(cache.rows, _view(payload, "rows", shape.dtype).to(device), strict=True):
        _scatter(source.view(-1, shape.head_dim), page_rows, target)
    if cache.side is not None:
        side = _view(payload, "side", shape.dtype).to(device)
        _scatter(side, token_rows, cache.side.view(-1, shape.side))
    return range(start, start + count)


def _fill(cache: KVCache, blocks: Sequence[int], start: int, count: int, tensors: Mapping[str, torch.Tensor]) -> None:
    shape = cache.shape
    token_rows, page_rows = _rows(cache, blocks, start, count)
    for source, target in zip(cache.rows, tensors["rows"], strict=True):
        _gather(source, page_rows, target.view(-1, shape.head_dim))
    if cache.side is not None:
        _gather(cache.side.view(-1, shape.side), token_rows, tensors["side"])


def _difference(payload: Payload, name: str, size: tuple[int, ...], dtype: str) -> str | None:
    """Return a description of the payload's tensor if the tensor does not fit, else ``None``."""
    held = held_tensors(payload).get(name)
    if held is not None:
        return None if (held.shape, held.dtype) == (size, dtype) else f"{held.dtype} {list(held.shape)}"
    array = payload.tensors.get(name)
    if array is None:
        return "nothing"
    fits = array.shape == size and array.dtype == numpy_dtype(dtype)
    return None if fits else f"{array.dtype} {list(array.shape)}"


def _rows(cache: KVCache, blocks: Sequence[int], start: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return where tokens lie: their rows in the cache as [blocks * block_size, …] and, page by page, the rows of their
    keys and values in a layer as [blocks * pages * block_size, head_dim]."""
    size, pages = cache.block_size, 2 * cache.shape.kv_heads
    places = np.arange(start, start + count)
    block, place = np.asarray(blocks, np.int64)[places // size], places % size
    page_rows = block * (pages * size) + place + np.arange(pages)[:, None] * size
    device = cache.layers[0].device
    return torch.from_numpy(block * size + place).to(device), torch.from_numpy(page_rows.reshape(-1)).to(device)


def _gather(source: torch.Tensor, rows: torch.Tensor, target: torch.Tensor) -> None:
    source, target = _words(source), _words(target)
    if source.device == target.device:
        torch.index_select(source, 0, rows, out=target)
    else:
        target.copy_(source.index_select(0, rows))


def _scatter(source: torch.Tensor, rows: torch.Tensor, target: torch.Tensor) -> None:
    _words(target).index_copy_(0, rows, _words(source))


def _words(rows: torch.Tensor) -> torch.Tensor:
    """Return rows as integers of eight bytes, if their length allows: the bits stay the same, and the copy is twice as
    fast."""
    return rows.view(torch.int64) if rows.shape[1] * rows.element_size() % 8 == 0 else rows


def _view(payload: Payload, name: str, dtype: torch.dtype) -> torch.Tensor:
    """Return a payload's tensor without a copy, on its own device. Do not write to a view of read-only memory."""
    held = held_tensors(payload).get(name)
    if isinstance(held, TorchTensor):
        return held.tensor
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(payload.tensors[name]).view(dtype)
