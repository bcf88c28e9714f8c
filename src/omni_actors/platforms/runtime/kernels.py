"""What executes where hardware makes a difference, in plain torch. A platform replaces what it does better.

Only workers import this: it imports torch. Whatever is chosen here computes the same: results differ by rounding only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F

Linear = Callable[[torch.Tensor], torch.Tensor]
"""[rows, in] → [rows, out]."""


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """What attention over a paged cache is chosen by."""

    kv_heads: int
    head_dim: int
    block_size: int
    dtype: torch.dtype


class PagedDecode(Protocol):
    """Attention of one new token per sequence over a paged cache."""

    def __call__(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        table: torch.Tensor,
        lengths: torch.Tensor,
        scale: float,
        window: int | None,
        softcap: float | None,
    ) -> torch.Tensor:
        """``query`` [n, heads, head_dim]; ``keys`` and ``values`` are views [blocks, kv_heads, block_size, head_dim],
        not contiguous; ``table`` int32 [n, blocks of the longest, or more] names each sequence's blocks in order (what
        is behind its end is any block of finite numbers); ``lengths`` int32 [n] counts its tokens, the new one among
        them, whose key is in the cache already. A token sees the last ``window`` of them; scores are squeezed into
        ±``softcap``. Waits for no result of the device, so that it can be recorded. Returns [n, heads, head_dim]."""
        ...


class PromptAttention(Protocol):
    """Causal attention of one sequence's last tokens over all of it."""

    def __call__(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float, window: int | None
    ) -> torch.Tensor:
        """``query`` [tokens, heads, head_dim] are the last of the ``length`` positions of ``keys`` and ``values``
        [kv_heads, length, head_dim], views. A token sees the last ``window`` positions up to its own. Returns
        [tokens, heads, head_dim]."""
        ...


def linear(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
    """``x → x · weightᵀ + bias`` for a ``weight`` [out, in] that is given away."""
    return lambda x: F.linear(x, weight, bias)


def experts(rows: torch.Tensor, counts: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    """Each row through its expert: ``down · (silu(gate) * up)``.

    ``rows`` [n, width] lie in the order of their experts, ``counts`` int64 [experts] of them for each; ``gate_up`` is
    [experts, 2 * inner, width], ``down`` [experts, width, inner]. Returns [n, width].
    """
    outputs = torch.empty_like(rows)
    start = 0
    for expert, count in enumerate(counts.tolist()):
        if count:
            part = slice(start, start + count)
            gate, up = F.linear(rows[part], gate_up[expert]).chunk(2, -1)
            outputs[part] = F.linear(F.silu(gate) * up, down[expert])
            start += count
    return outputs


def grouped_experts(
    rows: torch.Tensor, counts: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor
) -> torch.Tensor:
    """The same in two grouped products, for bfloat16 on devices that have them: nothing waits for ``counts``. They take
    rows of multiples of 16 bytes; others go through one expert after the other."""
    if any(it.shape[2] * it.dtype.itemsize % 16 for it in (gate_up, down)):
        return experts(rows, counts, gate_up, down)
    ends = counts.cumsum(0).to(torch.int32)
    gate, up = F.grouped_mm(rows, gate_up.transpose(1, 2), offs=ends).chunk(2, -1)
    return F.grouped_mm(F.silu(gate) * up, down.transpose(1, 2), offs=ends)


def experts_in_groups(
    rows: torch.Tensor, counts: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor
) -> torch.Tensor:
    """:func:`grouped_experts` of what those products take: bfloat16, in rows that are whole multiples of 16 bytes. One
    expert after the other for anything else."""
    whole = gate_up.shape[2] % 8 == 0 and down.shape[2] % 8 == 0
    chosen = grouped_experts if rows.dtype == torch.bfloat16 and whole else experts
    return chosen(rows, counts, gate_up, down)


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A cache's memory."""
    return torch.zeros(shape, dtype=dtype, device=device)


def greatest(values: torch.Tensor, count: int) -> torch.Tensor:
    """The ``count`` greatest of each row of float32 [rows, n], in descending order."""
    return values.topk(count, dim=-1).values


def sine_(x: torch.Tensor) -> torch.Tensor:
    """In place."""
    return x.sin_()


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
    """:class:`PagedDecode` for any layout: every sequence's blocks are gathered, whatever its length."""
    count, heads, head_dim = query.shape
    kv_heads, size = keys.shape[1:3]
    width = table.shape[1] * size
    # By head first: the query heads that share a key head are rows of one product.
    q = query.reshape(count, kv_heads, heads // kv_heads, head_dim).transpose(0, 1)
    k, v = (it.transpose(0, 1)[:, table].view(kv_heads, count, width, head_dim) for it in (keys, values))
    place = torch.arange(width, device=query.device)
    hidden = place >= lengths[:, None]
    if window is not None:
        hidden |= place < lengths[:, None] - window
    scores = torch.matmul(q, k.transpose(2, 3))
    scores = scores * scale if softcap is None else torch.tanh(scores * (scale / softcap)) * softcap
    weights = torch.softmax(scores.masked_fill(hidden[:, None], -torch.inf), -1)
    return torch.matmul(weights, v).transpose(0, 1).reshape(count, heads, head_dim)


def prompt_attention(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float, window: int | None
) -> torch.Tensor:
    """:class:`PromptAttention` written out: what others are held to."""
    tokens, heads, _ = query.shape
    kv_heads, length = keys.shape[:2]
    place = torch.arange(length, device=query.device)
    own = place[length - tokens :, None]
    hidden = place > own
    if window is not None:
        hidden |= place <= own - window
    k, v = (it.repeat_interleave(heads // kv_heads, 0) for it in (keys, values))
    scores = torch.matmul(query.transpose(0, 1), k.transpose(1, 2)) * scale
    weights = torch.softmax(scores.masked_fill(hidden, -torch.inf), -1)
    return torch.matmul(weights, v).transpose(0, 1)


@dataclass(frozen=True, slots=True)
class Kernels:
    """One platform's choice.

    ``unfolds`` says of a dilated convolution, by its input channels, whether one product over gathered taps is faster
    than the library's own. ``fused_decode_limit`` is the length up to which a group of decodes in a 16-bit dtype is one
    call of scaled_dot_product_attention, which beyond it is slower than two products; 0 where it never pays.
    ``block_size`` is what a block of the cache holds in tokens where a deploy file does not say: what attention reads
    best. ``paged_decode`` and ``prompt_attention`` take the place of gathering and masks where they give something: for
    layouts whose attention the platform has a kernel for. ``draw_rows`` are drawn from at once, 0 for all of a step's;
    ``draws_on_host`` says that the device has no float64, in which drawing sums, so that it is done on the host.
    """

    linear: Callable[[torch.Tensor, torch.Tensor | None], Linear] = linear
    experts: Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor] = experts
    zeros: Callable[[tuple[int, ...], torch.dtype, torch.device], torch.Tensor] = zeros
    unfolds: Callable[[int], bool] = lambda channels: False
    block_size: Callable[[torch.dtype], int] = lambda dtype: 16
    fused_decode_limit: int = 0
    paged_decode: Callable[[CacheLayout], PagedDecode | None] = lambda layout: None
    prompt_attention: Callable[[CacheLayout], PromptAttention | None] = lambda layout: None
    greatest: Callable[[torch.Tensor, int], torch.Tensor] = greatest
    draw_rows: int = 0
    draws_on_host: bool = False
    sine_: Callable[[torch.Tensor], torch.Tensor] = sine_
