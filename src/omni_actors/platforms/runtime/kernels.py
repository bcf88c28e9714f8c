"""The operations that hardware does differently, in plain torch. A platform replaces those that it does better.

This module imports torch, so only workers import it. All implementations of an operation compute the same result up to
rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F

Linear = Callable[[torch.Tensor], torch.Tensor]
"""A linear layer: [rows, in] → [rows, out]."""


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """The properties of a paged cache by which its attention is chosen."""

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
        """Compute the attention of one new token per sequence. The call does not wait for results of the device, so it
        can be captured.

        Args:
            query: [n, heads, head_dim].
            keys: A view [blocks, kv_heads, block_size, head_dim], not contiguous.
            values: A view like ``keys``.
            table: int32 [n, blocks of the longest sequence, or more]: each sequence's blocks in order. Entries behind a
                sequence's end name any block of finite numbers.
            lengths: int32 [n]: the tokens of each sequence with the new token, whose key is in the cache already.
            scale: The factor of the scores.
            window: A token sees only this many last tokens; ``None`` for all.
            softcap: Scores are squeezed into ± this value; ``None`` for no cap.

        Returns:
            [n, heads, head_dim].
        """
        ...


class PromptAttention(Protocol):
    """Causal attention of one sequence's last tokens over all of it."""

    def __call__(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float, window: int | None
    ) -> torch.Tensor:
        """Compute the attention of a sequence's last tokens.

        Args:
            query: [tokens, heads, head_dim], for the last of ``length`` positions.
            keys: A view [kv_heads, length, head_dim].
            values: A view like ``keys``.
            scale: The factor of the scores.
            window: A token sees only this many last positions up to its own; ``None`` for all.

        Returns:
            [tokens, heads, head_dim].
        """
        ...


def linear(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
    """Return ``x → x · weightᵀ + bias``. The caller gives ``weight`` [out, in] away."""
    return lambda x: F.linear(x, weight, bias)


def experts(rows: torch.Tensor, counts: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    """Put each row through its expert: ``down · (silu(gate) * up)``.

    Args:
        rows: [n, width], in the order of their experts.
        counts: int64 [experts]: the rows of each expert.
        gate_up: [experts, 2 * inner, width].
        down: [experts, width, inner].

    Returns:
        [n, width].
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
    """Compute :func:`experts` in two grouped products, for bfloat16 on devices that have such products; nothing waits
    for ``counts``. The products take rows of multiples of 16 bytes; other rows go through one expert after the other.
    """
    if any(it.shape[2] * it.dtype.itemsize % 16 for it in (gate_up, down)):
        return experts(rows, counts, gate_up, down)
    ends = counts.cumsum(0).to(torch.int32)
    gate, up = F.grouped_mm(rows, gate_up.transpose(1, 2), offs=ends).chunk(2, -1)
    return F.grouped_mm(F.silu(gate) * up, down.transpose(1, 2), offs=ends)


def experts_in_groups(
    rows: torch.Tensor, counts: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor
) -> torch.Tensor:
    """Compute :func:`grouped_experts` for the inputs of grouped products (bfloat16, rows of whole multiples of 16
    bytes), and :func:`experts` for other inputs."""
    whole = gate_up.shape[2] % 8 == 0 and down.shape[2] % 8 == 0
    chosen = grouped_experts if rows.dtype == torch.bfloat16 and whole else experts
    return chosen(rows, counts, gate_up, down)


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return zeros for a cache."""
    return torch.zeros(shape, dtype=dtype, device=device)


def greatest(values: torch.Tensor, count: int) -> torch.Tensor:
    """Return the ``count`` greatest values of each row of float32 [rows, n], in descending order."""
    return values.topk(count, dim=-1).values


def sine_(x: torch.Tensor) -> torch.Tensor:
    """Compute the sine in place."""
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
    """Compute :class:`PagedDecode` for any layout, by gathering the blocks of every sequence."""
    count, heads, head_dim = query.shape
    kv_heads, size = keys.shape[1:3]
    width = table.shape[1] * size
    # Heads come first: the query heads that share a key head are the rows of one product.
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
    """Compute :class:`PromptAttention` in plain torch, the reference for other implementations."""
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
    """The kernels of one platform.

    ``unfolds`` takes the input channels of a dilated convolution and says whether one product over gathered taps is
    faster than the library's convolution. ``fused_decode_limit`` is the length up to which a group of decodes in a
    16-bit dtype runs as one call of scaled_dot_product_attention, which is slower than two products beyond it; 0 where
    the call never pays. ``block_size`` gives the tokens per block of the cache that the platform's attention reads
    best, for deploy files that set none. ``paged_decode`` and ``prompt_attention`` return an attention that replaces
    gathering and masks, for layouts that the platform has a kernel for. ``draw_rows`` is the number of rows to draw
    from at once, 0 for all rows of a step; ``draws_on_host`` says that the device has no float64, which the sums of
    drawing need, so that tokens are drawn on the host.
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
