"""What executes where hardware makes a difference, in plain torch. A platform replaces what it does better.

Only workers import this: it imports torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F

Linear = Callable[[torch.Tensor], torch.Tensor]
"""[rows, in] → [rows, out]."""


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
        not contiguous; ``table`` int32 [n, blocks of the longest] names each sequence's blocks in order (what is behind
        its end is any block); ``lengths`` int32 [n] counts its tokens, the new one among them, whose key is in the
        cache already. A token sees the last ``window`` of them; scores are squeezed into ±``softcap``. Returns
        [n, heads, head_dim]."""
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
    """The same in two grouped products, for bfloat16 on devices that have them: nothing waits for ``counts``."""
    ends = counts.cumsum(0).to(torch.int32)
    gate, up = F.grouped_mm(rows, gate_up.transpose(1, 2), offs=ends).chunk(2, -1)
    return F.grouped_mm(F.silu(gate) * up, down.transpose(1, 2), offs=ends)


@dataclass(frozen=True, slots=True)
class Kernels:
    """One platform's choice.

    ``zeros`` gives a cache's memory. ``unfolds`` says of a dilated convolution, by its input channels, whether one
    product over gathered taps is faster than the library's own. ``fused_decode_limit`` is the length up to which a
    group of decodes in a 16-bit dtype is one call of scaled_dot_product_attention, which beyond it is slower than two
    products; 0 where it never pays. ``paged_decode`` takes the place of both, where there is one.
    """

    linear: Callable[[torch.Tensor, torch.Tensor | None], Linear] = linear
    experts: Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor] = experts
    zeros: Callable[[tuple[int, ...], torch.dtype, torch.device], torch.Tensor] = lambda shape, dtype, device: (
        torch.zeros(shape, dtype=dtype, device=device)
    )
    unfolds: Callable[[int], bool] = lambda channels: False
    fused_decode_limit: int = 0
    paged_decode: PagedDecode | None = None
