"""Package flash-attn by its documentation, computed by plain torch, for what is asked of it here."""

from __future__ import annotations

from types import ModuleType

import torch


class FlashAttn(ModuleType):
    """Package flash-attn by its documentation, for what is asked of it here. ``broken`` adds to what it computes."""

    def __init__(self, broken: float = 0.0) -> None:
        super().__init__("flash_attn")
        self.broken = broken
        self.calls: list[str] = []

    def flash_attn_func(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        dropout_p: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: tuple[int, int] = (-1, -1),
        softcap: float = 0.0,
    ) -> torch.Tensor:
        """[batch, tokens, heads, head_dim]. With fewer queries than keys, the mask is aligned to the bottom right."""
        self.calls.append("flash_attn_func")
        assert q.stride(-1) == k.stride(-1) == v.stride(-1) == 1
        assert q.dtype in (torch.float16, torch.bfloat16)
        return by_documentation(q, k, v, softmax_scale, causal, window_size, softcap) + self.broken

    def flash_attn_with_kvcache(
        self,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        cache_seqlens: torch.Tensor,
        block_table: torch.Tensor,
        softmax_scale: float,
        causal: bool,
        window_size: tuple[int, int],
        softcap: float,
    ) -> torch.Tensor:
        """``k_cache`` [blocks, page, kv_heads, head_dim], pages of a multiple of 256."""
        self.calls.append("flash_attn_with_kvcache")
        assert k_cache.shape[1] % 256 == 0
        assert block_table.dtype == cache_seqlens.dtype == torch.int32
        rows = []
        for query, table, length in zip(q, block_table, cache_seqlens.tolist(), strict=True):
            k, v = (it[table.long()].flatten(0, 1)[:length][None] for it in (k_cache, v_cache))
            rows.append(by_documentation(query[None], k, v, softmax_scale, causal, window_size, softcap))
        return torch.cat(rows) + self.broken


def by_documentation(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float | None,
    causal: bool,
    window: tuple[int, int],
    softcap: float,
) -> torch.Tensor:
    (_, n, heads, head_dim), length = q.shape, k.shape[1]
    k, v = (it.float().repeat_interleave(heads // it.shape[2], 2) for it in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q.float(), k) * (scale or head_dim**-0.5)
    if softcap:
        scores = torch.tanh(scores / softcap) * softcap
    at, place = torch.arange(n)[:, None] + length - n, torch.arange(length)
    left, right = window[0], 0 if causal else window[1]
    hidden = torch.zeros(n, length, dtype=torch.bool)
    if left >= 0:
        hidden |= place < at - left
    if right >= 0:
        hidden |= place > at + right
    weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    return torch.einsum("bhqk,bkhd->bqhd", weights, v).to(q.dtype)
