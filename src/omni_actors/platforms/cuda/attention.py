"""The choice of attention on an NVIDIA GPU, by compute capability, dtype and installed packages.

FlashAttention needs compute capability 8.0, a 16-bit dtype, and heads of up to 256 channels in steps of 8. Two packages
provide FlashAttention: ``flash-attn``, and torch itself. Both read a paged cache in place if blocks are multiples of
256 tokens. The masks of prompts that continue computed ones are aligned to the last key (bottom right), as ours are.
Without FlashAttention, torch's scaled_dot_product_attention chooses among its backends, cuDNN's first where cuDNN is
fastest.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from omni_actors.platforms.runtime import kernels as plain
from omni_actors.platforms.runtime.kernels import PagedDecode, PromptAttention

FLASH_BLOCK = 256
"""FlashAttention 2 reads pages of a multiple of so many tokens."""

FLASH_HEAD = 256
"""Most channels of a head, in steps of 8."""


def flashes(capability: tuple[int, int], dtype: torch.dtype, head_dim: int) -> bool:
    """Return whether FlashAttention can compute the layer."""
    return capability >= (8, 0) and dtype.itemsize == 2 and head_dim <= FLASH_HEAD and head_dim % 8 == 0


# ---- one new token per sequence


def decode_by_package(flash_attn: Any) -> PagedDecode:
    """``flash_attn_with_kvcache`` of package flash-attn."""

    def attend(
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        table: torch.Tensor,
        lengths: torch.Tensor,
        scale: float,
        window: int | None,
        softcap: float | None,
    ) -> torch.Tensor:
        out: torch.Tensor = flash_attn.flash_attn_with_kvcache(
            query.unsqueeze(1),
            keys.transpose(1, 2),
            values.transpose(1, 2),
            cache_seqlens=lengths,
            block_table=table,
            softmax_scale=scale,
            causal=True,
            window_size=_window(window),
            softcap=softcap or 0.0,
        )
        return out.squeeze(1)

    return attend


def decode_by_torch(varlen_attn: Any) -> PagedDecode:
    """Decode by ``torch.nn.attention.varlen.varlen_attn``; layers with a softcap, unknown to the operator, use plain
    torch."""
    starts: dict[int, torch.Tensor] = {}

    def attend(
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        table: torch.Tensor,
        lengths: torch.Tensor,
        scale: float,
        window: int | None,
        softcap: float | None,
    ) -> torch.Tensor:
        if softcap is not None:
            return plain.paged_decode(query, keys, values, table, lengths, scale, window, softcap)
        count = len(query)
        start = starts.get(count)
        if start is None:
            start = starts[count] = torch.arange(count + 1, dtype=torch.int32, device=query.device)
        out: torch.Tensor = varlen_attn(
            query.contiguous(),
            keys.transpose(1, 2),
            values.transpose(1, 2),
            start,
            None,
            1,
            table.shape[1] * keys.shape[2],
            scale=scale,
            window_size=_window(window),
            enable_gqa=query.shape[1] != keys.shape[1],
            seqused_k=lengths,
            block_table=table,
        )
        return out

    return attend


def torch_reads_tables() -> Any | None:
    """Return torch's ``varlen_attn``, if installed in a version that reads a paged cache."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    return varlen_attn if "block_table" in inspect.signature(varlen_attn).parameters else None


# ---- prompts


def prompt_by_package(flash_attn: Any) -> PromptAttention:
    """``flash_attn_func`` of package flash-attn."""

    def attend(
        query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float, window: int | None
    ) -> torch.Tensor:
        out: torch.Tensor = flash_attn.flash_attn_func(
            query.unsqueeze(0),
            keys.transpose(0, 1).unsqueeze(0),
            values.transpose(0, 1).unsqueeze(0),
            softmax_scale=scale,
            causal=True,
            window_size=_window(window),
        )
        return out.squeeze(0)

    return attend


def prompt_by_backends(order: Sequence[SDPBackend]) -> PromptAttention:
    """Compute scaled_dot_product_attention by the first able one of ``backends``."""
    backends = list(order)

    @functools.lru_cache(maxsize=4)  # the layers of a step ask for the same one
    def mask(count: int, length: int, window: int | None, device: torch.device) -> torch.Tensor:
        last = torch.arange(length - count, length, device=device)[:, None]
        place = torch.arange(length, device=device)
        seen = place <= last
        return seen if window is None else seen & (place > last - window)

    def attend(
        query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float, window: int | None
    ) -> torch.Tensor:
        count, heads = query.shape[:2]
        kv_heads, length = keys.shape[:2]
        whole = count == length and (window is None or window >= count)
        with sdpa_kernel(backends, set_priority=True):
            out = F.scaled_dot_product_attention(
                query.transpose(0, 1).unsqueeze(0),
                keys.unsqueeze(0),
                values.unsqueeze(0),
                attn_mask=None if whole else mask(count, length, window, query.device),
                is_causal=whole,
                scale=scale,
                enable_gqa=heads != kv_heads,
            )
        return out.squeeze(0).transpose(0, 1)

    return attend


def backends(capability: tuple[int, int], dtype: torch.dtype) -> tuple[SDPBackend, ...]:
    """Return the order of scaled_dot_product_attention's backends: cuDNN first from compute capability 9.0 on,
    FlashAttention below. Both backends take heads that share a key head, and cuDNN takes masks. Returns an empty order
    where no choice exists: neither backend has float32 or runs below 8.0."""
    rest = (SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH)
    if dtype.itemsize != 2 or capability < (8, 0):
        return ()
    if capability >= (9, 0):
        return (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, *rest)
    return (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, *rest)


def _window(window: int | None) -> tuple[int, int]:
    """Return FlashAttention's window: the places visible before and behind a token; -1 is all."""
    return (-1, 0) if window is None else (window - 1, 0)
