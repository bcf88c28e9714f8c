"""Attention over the paged KV cache, in plain torch operations.

Layout: per layer one tensor [blocks, 2 * kv_heads, block_size, head_dim], keys' heads before values' heads. A block is
thus 2 * kv_heads *pages* of [block_size, head_dim]. A sequence's pages gathered in the order head, block are the
[kv_heads, length, head_dim] that a batched matrix product wants.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from omni_actors.platforms.runtime.kernels import CacheLayout, Kernels
from omni_actors.worker.engines.autoregressive.decoder import KVShape


class KVCache:
    """The tensors of the cache, with two blocks more than the pool.

    ``padding`` stays zero and pads shorter sequences; ``scratch`` takes writes that belong to no sequence.
    """

    def __init__(self, shape: KVShape, blocks: int, block_size: int, device: torch.device, kernels: Kernels) -> None:
        self.shape = shape
        self.kernels = kernels
        self.block_size = block_size
        self.padding, self.scratch = blocks, blocks + 1
        layout = CacheLayout(shape.kv_heads, shape.head_dim, block_size, shape.dtype)
        self.paged_decode = kernels.paged_decode(layout)
        self.prompt_attention = kernels.prompt_attention(layout)
        # Zeros, not whatever memory holds: places behind a sequence's end are masked, but 0 * NaN is NaN.
        self.layers = [
            kernels.zeros((blocks + 2, 2 * shape.kv_heads, block_size, shape.head_dim), shape.dtype, device)
            for _ in range(shape.layers)
        ]
        self.rows = [layer.view(-1, shape.head_dim) for layer in self.layers]
        """The same memory by single keys and values."""
        self.pages = [layer.view(-1, block_size * shape.head_dim) for layer in self.layers]
        """The same memory by pages."""
        side = (blocks + 2, block_size, shape.side)
        self.side = kernels.zeros(side, shape.dtype, device) if shape.side else None
        """The side vectors: [blocks, block_size, side]."""

    def halves(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Views of a layer's keys and values: [blocks, kv_heads, block_size, head_dim]."""
        both, heads = self.layers[layer], self.shape.kv_heads
        return both[:, :heads], both[:, heads:]

    def copy(self, source: int, target: int) -> None:
        """Give ``target`` the content of block ``source``."""
        for layer in self._tensors:
            layer[target] = layer[source]

    def zero_blocks(self, blocks: Sequence[int]) -> None:
        """Make blocks zero: of a sequence whose numbers went bad, so that no later owner reads them as padding."""
        for layer in self._tensors:
            layer[list(blocks)] = 0

    def side_rows(self, blocks: Sequence[int], start: int, count: int) -> torch.Tensor:
        """A copy of the side vectors of tokens ``start … start + count - 1`` of a sequence: [count, side]."""
        assert self.side is not None
        places = np.arange(start, start + count)
        rows = np.asarray(blocks)[places // self.block_size] * self.block_size + places % self.block_size
        return self.side.view(-1, self.shape.side).index_select(0, torch.from_numpy(rows).to(self.side.device))

    @property
    def _tensors(self) -> list[torch.Tensor]:
        return self.layers if self.side is None else [*self.layers, self.side]


@dataclass(frozen=True, slots=True)
class Extent:
    """The tokens ``start … start + count - 1`` of a sequence with its blocks, as the part of one step."""

    start: int
    count: int
    blocks: Sequence[int]

    @property
    def end(self) -> int:
        return self.start + self.count


@dataclass(slots=True)
class _Decodes:
    """Sequences with one token each and about the same length: rows ``first … first + len(lengths) - 1``."""

    first: int
    lengths: np.ndarray
    pages: torch.Tensor
    width: int


@dataclass(slots=True)
class _Prompt:
    """One sequence with several tokens: rows ``first … first + count - 1``."""

    first: int
    count: int
    start: int
    pages: torch.Tensor | None


PADDING_LIMIT = 512
"""Tokens of padding that a group of decodes may hold before a shorter sequence starts the next group. Measured: a group
more costs about as much as reading so many tokens."""


class PagedAttention:
    """The attention of one step.

    ``extents`` are in the order of the flat token list: extents of one token first, longer sequences before shorter
    ones (:func:`flat_order`).
    """

    def __init__(self, cache: KVCache, extents: Sequence[Extent]) -> None:
        self._cache = cache
        self._pages_per_block = 2 * cache.shape.kv_heads
        self._slots = self._token_slots(extents)
        self._table: tuple[torch.Tensor, torch.Tensor] | None = None
        if cache.paged_decode is not None:
            decodes = [extent for extent in extents if extent.count == 1]
            self._table = self._tables(decodes) if decodes else None
            self._decodes, self._prompts = self._group(extents[len(decodes) :], len(decodes))
        else:
            self._decodes, self._prompts = self._group(extents)
        self._masks: dict[tuple[int, int | None], torch.Tensor] = {}

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key_value: torch.Tensor,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
    ) -> torch.Tensor:
        """See :class:`~omni_actors.worker.engines.autoregressive.decoder.Attention`."""
        cache = self._cache
        cache.rows[layer].index_copy_(0, self._slots, key_value.reshape(-1, key_value.shape[2]))
        pages = cache.pages[layer]
        parts = []
        if self._table is not None and cache.paged_decode is not None:
            table, lengths = self._table
            parts.append(
                cache.paged_decode(query[: len(table)], *cache.halves(layer), table, lengths, scale, window, softcap)
            )
        parts += [self._decode(i, group, pages, query, scale, window, softcap) for i, group in enumerate(self._decodes)]
        parts += [
            self._prompt(i, prompt, pages, query, key_value, scale, window, softcap)
            for i, prompt in enumerate(self._prompts, len(self._decodes))
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def keep(self, side: torch.Tensor) -> None:
        """See :class:`~omni_actors.worker.engines.autoregressive.decoder.Attention`."""
        cache = self._cache
        assert cache.side is not None
        pages = self._pages_per_block
        # A token's first slot is in page 0 of its block: from rows of all pages to rows of blocks.
        first = self._slots.view(-1, pages)[:, 0]
        block = torch.div(first, pages * cache.block_size, rounding_mode="floor")
        rows = block * cache.block_size + first % cache.block_size
        cache.side.view(-1, cache.shape.side).index_copy_(0, rows, side)

    def _decode(
        self,
        index: int,
        group: _Decodes,
        pages: torch.Tensor,
        query: torch.Tensor,
        scale: float,
        window: int | None,
        softcap: float | None,
    ) -> torch.Tensor:
        count = len(group.lengths)
        kv_heads = self._cache.shape.kv_heads
        heads, head_dim = query.shape[1:]
        gathered = pages.index_select(0, group.pages)
        keys, values = gathered.view(2, count * kv_heads, group.width, head_dim).unbind()
        # The query heads that share a key head are rows of one product: nothing is repeated.
        q = query[group.first : group.first + count].reshape(count * kv_heads, heads // kv_heads, head_dim)
        mask = self._mask(index, window)
        fused = self._cache.kernels.fused_decode_limit
        if softcap is None and q.dtype.itemsize == 2 and count * group.width <= fused:
            out = F.scaled_dot_product_attention(q[None], keys[None], values[None], attn_mask=mask[None], scale=scale)
            return out.view(count, heads, head_dim)
        if softcap is None:
            scores = torch.baddbmm(mask, q, keys.transpose(1, 2), alpha=scale)
        else:
            scores = torch.bmm(q * (scale / softcap), keys.transpose(1, 2)).tanh_().mul_(softcap).add_(mask)
        return torch.bmm(torch.softmax(scores, -1), values).view(count, heads, head_dim)

    def _prompt(
        self,
        index: int,
        prompt: _Prompt,
        pages: torch.Tensor,
        query: torch.Tensor,
        key_value: torch.Tensor,
        scale: float,
        window: int | None,
        softcap: float | None,
    ) -> torch.Tensor:
        rows = slice(prompt.first, prompt.first + prompt.count)
        kv_heads, head_dim = self._cache.shape.kv_heads, query.shape[2]
        q = query[rows].transpose(0, 1)
        if prompt.pages is None:
            both = key_value[rows].transpose(0, 1)
        else:
            both = pages.index_select(0, prompt.pages).view(2 * kv_heads, -1, head_dim)[
                :, : prompt.start + prompt.count
            ]
        keys, values = both[:kv_heads], both[kv_heads:]
        if softcap is None and self._cache.prompt_attention is not None:
            return self._cache.prompt_attention(query[rows], keys, values, scale, window)
        if softcap is not None:
            groups = q.reshape(kv_heads, -1, prompt.count, head_dim)
            scores = torch.matmul(groups * (scale / softcap), keys.transpose(1, 2).unsqueeze(1))
            scores = scores.tanh_().mul_(softcap).add_(self._mask(index, window))
            out = torch.matmul(torch.softmax(scores, -1), values.unsqueeze(1)).flatten(0, 1)
        else:
            whole = prompt.pages is None and (window is None or window >= prompt.count)
            out = F.scaled_dot_product_attention(
                q.unsqueeze(0),
                keys.unsqueeze(0),
                values.unsqueeze(0),
                attn_mask=None if whole else self._mask(index, window),
                is_causal=whole,
                scale=scale,
                enable_gqa=q.shape[0] != kv_heads,
            ).squeeze(0)
        return out.transpose(0, 1)

    def _mask(self, index: int, window: int | None) -> torch.Tensor:
        """Return the mask to add to the scores: 0, or -inf for places that a token does not see.

        The shape is [sequences * kv_heads, 1, width] for decodes, [tokens, length] for a prompt.
        """
        mask = self._masks.get((index, window))
        if mask is None:
            mask = self._masks[index, window] = self._make_mask(index, window)
        return mask

    def _make_mask(self, index: int, window: int | None) -> torch.Tensor:
        dtype, device = self._cache.shape.dtype, self._cache.layers[0].device
        if index < len(self._decodes):
            group = self._decodes[index]
            last = (group.lengths - 1)[:, None]
            width = group.width
        else:
            prompt = self._prompts[index - len(self._decodes)]
            last = np.arange(prompt.start, prompt.start + prompt.count)[:, None]
            width = prompt.start + prompt.count
        place = np.arange(width)[None]
        seen = place <= last
        if window is not None:
            seen &= place > last - window
        mask = torch.zeros(seen.shape, dtype=dtype).masked_fill_(torch.from_numpy(~seen), -torch.inf).to(device)
        if index < len(self._decodes):
            mask = mask.repeat_interleave(self._cache.shape.kv_heads, 0).unsqueeze(1)
        return mask

    def _token_slots(self, extents: Sequence[Extent]) -> torch.Tensor:
        """Return the row of the layer's pool, seen as [rows, head_dim], for each new token and page of its block."""
        size, pages = self._cache.block_size, self._pages_per_block
        places = np.concatenate([np.arange(e.start, e.end) for e in extents])
        blocks = np.concatenate([np.asarray(e.blocks)[np.arange(e.start, e.end) // size] for e in extents])
        first = blocks * (pages * size) + places % size
        slots = first[:, None] + np.arange(pages) * size
        return self._tensor(slots)

    def _tables(self, decodes: Sequence[Extent]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the tables for a platform's own kernel: each sequence's blocks in order, and its length."""
        counts = [-(-e.end // self._cache.block_size) for e in decodes]
        table = np.full((len(decodes), max(counts)), self._cache.padding, np.int32)
        for row, extent, count in zip(table, decodes, counts, strict=True):
            row[:count] = extent.blocks[:count]
        lengths = np.array([e.end for e in decodes], np.int32)
        return self._tensor(table).view(table.shape), self._tensor(lengths)

    def _group(self, extents: Sequence[Extent], row: int = 0) -> tuple[list[_Decodes], list[_Prompt]]:
        """``row`` is the first extent's."""
        decodes: list[_Decodes] = []
        prompts: list[_Prompt] = []
        members: list[Extent] = []
        waste = 0
        for extent in extents:
            if extent.count == 1:
                waste += members[0].end - extent.end if members else 0
                if waste > PADDING_LIMIT:
                    decodes.append(self._decode_group(row - len(members), members))
                    members, waste = [], 0
                members.append(extent)
            else:
                pages = self._pages([extent]) if extent.start else None
                prompts.append(_Prompt(row, extent.count, extent.start, pages))
            row += extent.count
        if members:
            decodes.append(self._decode_group(0 if not decodes else _end(decodes[-1]), members))
        return decodes, prompts

    def _decode_group(self, first: int, members: list[Extent]) -> _Decodes:
        lengths = np.array([e.end for e in members])
        width = -(-int(lengths.max()) // self._cache.block_size) * self._cache.block_size
        return _Decodes(first, lengths, self._pages(members), width)

    def _pages(self, extents: Sequence[Extent]) -> torch.Tensor:
        """The pages of some sequences in the order keys and values, sequence, head, block; padded to equal length."""
        kv_heads, size = self._cache.shape.kv_heads, self._cache.block_size
        counts = [-(-e.end // size) for e in extents]
        tables = np.full((len(extents), max(counts)), self._cache.padding)
        for row, extent, count in zip(tables, extents, counts, strict=True):
            row[:count] = extent.blocks[:count]
        first = tables * self._pages_per_block
        head = np.arange(self._pages_per_block).reshape(2, 1, kv_heads, 1)
        return self._tensor(first[None, :, None, :] + head)

    def _tensor(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array).reshape(-1)).to(self._cache.layers[0].device)


def _end(group: _Decodes) -> int:
    return group.first + len(group.lengths)


def flat_order(extent: Extent) -> tuple[bool, int]:
    """Return the sort key of an extent in the order of :class:`PagedAttention`."""
    return (extent.count > 1, -extent.end if extent.count == 1 else 0)
