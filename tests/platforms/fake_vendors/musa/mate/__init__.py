"""mate: FlashAttention over pages [pages, tokens, heads, head_dim], as its docstring has it."""

from __future__ import annotations

import torch
from tests.platforms.fake_vendors.host_device import record

from omni_actors.platforms.runtime.kernels import paged_decode


def flash_attn_with_kvcache(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    *,
    cache_seqlens: torch.Tensor,
    page_table: torch.Tensor,
    softmax_scale: float,
    causal: bool,
    window_size: tuple[int, int],
    softcap: float,
) -> torch.Tensor:
    record("mate.flash_attn_with_kvcache")
    if q.dim() != 4 or q.shape[1] != 1 or k_cache.stride(-1) != 1 or q.dtype == torch.float32 or not causal:
        raise RuntimeError("not as documented")
    window = window_size[0] + 1 if window_size[0] >= 0 else None
    keys, values = k_cache.transpose(1, 2), v_cache.transpose(1, 2)
    out = paged_decode(q.squeeze(1), keys, values, page_table, cache_seqlens, softmax_scale, window, softcap or None)
    return out.unsqueeze(1)
