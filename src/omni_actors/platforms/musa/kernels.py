"""Kernels of a Moore Threads GPU: mate's FlashAttention over the paged cache, from capability 3.1 on, if the results
agree with plain torch.

Support of float64 is unknown (according to vLLM-Omni torch_musa has none), and no kernel here uses float64.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from omni_actors.platforms.runtime import kernel_validation
from omni_actors.platforms.runtime.kernels import CacheLayout, Kernels, PagedDecode

_FLASH_FROM = (3, 1)
_SIXTEEN_BITS = (torch.bfloat16, torch.float16)


def kernels(version: tuple[int, int], device: torch.device, mate: bool) -> Kernels:
    """Choose the device's kernels. ``mate`` says whether the package is installed."""

    @functools.cache
    def paged_decode(layout: CacheLayout) -> PagedDecode | None:
        fits = layout.dtype in _SIXTEEN_BITS and layout.head_dim % 8 == 0 and layout.head_dim <= 256
        if not mate or version < _FLASH_FROM or not fits:
            return None
        return kernel_validation.choose_decode(layout, device, [("mate", lambda: flash_decode)])

    return Kernels(paged_decode=paged_decode, draws_on_host=True)


def flash_decode(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    table: torch.Tensor,
    lengths: torch.Tensor,
    scale: float,
    window: int | None,
    softcap: float | None,
) -> torch.Tensor:
    """Attend as :class:`PagedDecode` says. The operator's pages are [tokens, heads, head_dim], and so are views of this
    cache's pages."""
    import mate

    flash: Any = mate.flash_attn_with_kvcache
    out: torch.Tensor = flash(
        query.unsqueeze(1),
        keys.transpose(1, 2),
        values.transpose(1, 2),
        cache_seqlens=lengths,
        page_table=table,
        softmax_scale=scale,
        causal=True,
        window_size=(-1 if window is None else window - 1, 0 if window is not None else -1),
        softcap=softcap or 0.0,
    )
    return out.squeeze(1)
