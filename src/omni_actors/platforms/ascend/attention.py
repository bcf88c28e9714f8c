"""CANN's fused attention (``npu_fused_infer_attention_score``) over our paged cache and over prompts.

Its documented bounds: 16-bit dtypes; heads of at most 512 channels, for prompts a multiple of 16; blocks of at most
512 tokens and a multiple of 16 (128 is recommended). The operator has no soft cap, and for a single query no window:
layers that need either are computed in plain torch.
"""

from __future__ import annotations

import torch

from omni_actors.platforms.runtime import kernels as plain
from omni_actors.platforms.runtime.kernels import CacheLayout

BLOCK = 128
"""Tokens per block, as CANN recommends."""

_MASK = 2048
"""Rows and columns of the triangular mask of a causal operator, for any lengths."""

_CAUSAL = 3
"""``sparse_mode``: the last query sees all keys, the query before it all but the last key, and so on."""


def decodes(layout: CacheLayout) -> bool:
    """Return whether the operator takes a cache of this layout."""
    return _sixteen(layout) and layout.block_size % 16 == 0 and layout.block_size <= 512


def prompts(layout: CacheLayout) -> bool:
    """Return whether the operator takes prompts of this layout."""
    return _sixteen(layout) and layout.head_dim % 16 == 0


def _sixteen(layout: CacheLayout) -> bool:
    return layout.dtype in (torch.float16, torch.bfloat16) and layout.head_dim <= 512


class FusedDecode:
    """Implements :class:`~omni_actors.platforms.runtime.kernels.PagedDecode`.

    The operator takes lengths from the host, so each step waits once for the device and cannot be part of a graph.
    """

    def __init__(self) -> None:
        self._lengths: torch.Tensor | None = None
        self._counts: list[int] = []
        self._table: torch.Tensor | None = None
        self._blocks: torch.Tensor | None = None

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
        import torch_npu

        counts = self._on_host(lengths)
        if softcap is not None or (window is not None and window < max(counts)):
            return plain.paged_decode(query, keys, values, table, lengths, scale, window, softcap)
        blocks, kv_heads, size, head_dim = keys.shape
        # A block holds its keys, then its values. Viewed as blocks of half the size, the keys are the even blocks of
        # the memory; viewed from one such block further on, the values are the even blocks.
        shape, stride = (2 * blocks - 1, kv_heads, size, head_dim), (kv_heads * size * head_dim, *keys.stride()[1:])
        out, _ = torch_npu.npu_fused_infer_attention_score(
            query.unsqueeze(2).contiguous(),
            keys.as_strided(shape, stride),
            values.as_strided(shape, stride),
            actual_seq_lengths_kv=counts,
            block_table=self._doubled(table),
            num_heads=query.shape[1],
            num_key_value_heads=kv_heads,
            scale=scale,
            input_layout="BNSD",
            block_size=size,
        )
        result: torch.Tensor = out.squeeze(2)
        return result

    def _on_host(self, lengths: torch.Tensor) -> list[int]:
        """Return the lengths on the host. All layers of a step share one copy."""
        if lengths is not self._lengths:
            self._lengths, self._counts = lengths, lengths.tolist()
        return self._counts

    def _doubled(self, table: torch.Tensor) -> torch.Tensor:
        if table is not self._table or self._blocks is None:
            self._table, self._blocks = table, (table * 2).contiguous()
        return self._blocks


class FusedPrompt:
    """Implements :class:`~omni_actors.platforms.runtime.kernels.PromptAttention`."""

    def __init__(self, device: torch.device) -> None:
        self._mask = torch.ones(_MASK, _MASK, dtype=torch.bool).triu(1).to(device)

    def __call__(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float, window: int | None
    ) -> torch.Tensor:
        import torch_npu

        if window is not None and window < keys.shape[1]:
            return masked(query, keys, values, scale, window)
        out, _ = torch_npu.npu_fused_infer_attention_score(
            query.transpose(0, 1).unsqueeze(0).contiguous(),
            keys.unsqueeze(0).contiguous(),
            values.unsqueeze(0).contiguous(),
            atten_mask=self._mask,
            num_heads=query.shape[1],
            num_key_value_heads=keys.shape[0],
            scale=scale,
            input_layout="BNSD",
            sparse_mode=_CAUSAL,
        )
        result: torch.Tensor = out.squeeze(0).transpose(0, 1)
        return result


def masked(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float, window: int) -> torch.Tensor:
    """Compute a prompt with a window, in plain torch."""
    count, length = query.shape[0], keys.shape[1]
    last = torch.arange(length - count, length, device=query.device)[:, None]
    place = torch.arange(length, device=query.device)[None]
    seen = (place <= last) & (place > last - window)
    out = torch.nn.functional.scaled_dot_product_attention(
        query.transpose(0, 1)[None], keys[None], values[None], seen, scale=scale, enable_gqa=True
    )
    return out[0].transpose(0, 1)
