"""Attention of one new token per sequence over the paged cache, as one Triton kernel.

A program computes one sequence's heads that share a key head, block by block of the cache, with the running maximum and
sum of an online softmax (Milakov and Gimelshein, 2018), so that no intermediate result has the length of a sequence.
The module is imported only for a platform that chose it, and needs Triton.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

LEAST = 16
"""Least number of rows and columns in Triton's matrix product."""


@triton.jit
def _decode(  # type: ignore[no-untyped-def]  # Triton's own types
    out,
    query,
    keys,
    values,
    table,
    lengths,
    scale,
    window,
    softcap,
    group,
    head_dim,
    out_stride,
    query_stride,
    block_stride,
    head_stride,
    place_stride,
    table_stride,
    GROUP: tl.constexpr,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
):
    sequence = tl.program_id(0)
    kv_head = tl.program_id(1)
    rows = tl.arange(0, GROUP)
    columns = tl.arange(0, WIDTH)
    places = tl.arange(0, SIZE)
    inside = (rows[:, None] < group) & (columns[None, :] < head_dim)
    at = (kv_head * group + rows)[:, None] * head_dim + columns[None, :]
    q = tl.load(query + sequence * query_stride + at, mask=inside, other=0.0)
    length = tl.load(lengths + sequence)
    begin = 0
    if WINDOW:
        begin = tl.maximum(length - window, 0) // SIZE
    most = tl.full([GROUP], float("-inf"), tl.float32)
    total = tl.zeros([GROUP], tl.float32)
    mean = tl.zeros([GROUP, WIDTH], tl.float32)
    for number in range(begin, tl.cdiv(length, SIZE)):
        block = tl.load(table + sequence * table_stride + number).to(tl.int64)
        base = block * block_stride + kv_head * head_stride
        position = number * SIZE + places
        seen = position < length
        if WINDOW:
            seen = seen & (position >= length - window)
        tile = base + places[:, None] * place_stride + columns[None, :]
        there = seen[:, None] & (columns[None, :] < head_dim)
        k = tl.load(keys + tile, mask=there, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        if SOFTCAP:
            # tanh, by operations that every backend has
            folded = tl.exp(-2.0 * tl.abs(scores / softcap))
            scores = softcap * tl.where(scores < 0, -1.0, 1.0) * (1.0 - folded) / (1.0 + folded)
        scores = tl.where(seen[None, :], scores, float("-inf"))
        higher = tl.maximum(most, tl.max(scores, 1))
        shares = tl.exp(scores - higher[:, None])
        fade = tl.exp(most - higher)
        v = tl.load(values + tile, mask=there, other=0.0)
        mean = mean * fade[:, None] + tl.dot(shares.to(v.dtype), v, input_precision="ieee")
        total = total * fade + tl.sum(shares, 1)
        most = higher
    result = mean / total[:, None]
    tl.store(out + sequence * out_stride + at, result.to(q.dtype), mask=inside)


def paged_decode(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    table: torch.Tensor,
    lengths: torch.Tensor,
    scale: float,
    window: int | None,
    softcap: float | None,
) -> torch.Tensor:
    """Compute :class:`~omni_actors.platforms.runtime.kernels.PagedDecode` as one Triton kernel."""
    count, heads, head_dim = query.shape
    kv_heads, size = keys.shape[1:3]
    group = heads // kv_heads
    query = query.contiguous()
    out = torch.empty_like(query)
    _decode[(count, kv_heads)](
        out,
        query,
        keys,
        values,
        table,
        lengths,
        scale,
        window or 0,
        softcap or 0.0,
        group,
        head_dim,
        out.stride(0),
        query.stride(0),
        keys.stride(0),
        keys.stride(1),
        keys.stride(2),
        table.stride(0),
        GROUP=max(LEAST, triton.next_power_of_2(group)),
        SIZE=size,
        WIDTH=max(LEAST, triton.next_power_of_2(head_dim)),
        WINDOW=window is not None,
        SOFTCAP=softcap is not None,
    )
    return out
