"""Decode steps as recordings: what a step launches on the device is recorded once, and launched again as one.

A small model's decode step is hundreds of launches, each of which the processor takes longer for than the device. A
platform that can record them (:class:`~omni_actors.platforms.runtime.Graphs`: CUDA graphs, say) replays them in one
call. A recording is bound to memory: so everything that changes from step to step lies in buffers that stay where they
are, and a step is padded to one of a few numbers of rows. Padding rows compute a token of a block that no sequence has.

What is recorded is a step of nothing but decodes, one token of each sequence. Prompts, and steps with a prompt among
them, run as they are written; so do all steps of a decoder that has no second half (:class:`CapturableDecoder`).
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from omni_actors.platforms.runtime import Graphs
from omni_actors.platforms.runtime.kernels import PagedDecode, paged_decode
from omni_actors.worker.engines.autoregressive.attention import KVCache
from omni_actors.worker.engines.autoregressive.decoder import CapturableDecoder, Span, StepInputs, StepOutput
from omni_actors.worker.engines.autoregressive.sequence import ScheduledChunk

log = logging.getLogger(__name__)

GATHERED_TOKENS = (512, 2048)
"""Lengths of sequences that steps are recorded for where attention gathers every sequence's blocks: as many for each as
the longest may have. Longer ones run as they are written, whose gathering ends with each sequence."""


@dataclass(frozen=True, slots=True)
class _Capture:
    replay: Callable[[], StepOutput]
    table: torch.Tensor


class CapturedSteps:
    """The recordings of one decoder over one cache. ``max_batch`` sequences decode at once, none is longer than
    ``max_len`` tokens."""

    def __init__(
        self, decoder: CapturableDecoder, cache: KVCache, graphs: Graphs, max_batch: int, max_len: int
    ) -> None:
        self.steps = 0
        """Steps that were replayed."""
        self._decoder = decoder
        self._cache = cache
        sizes = sorted(graphs.sizes)
        self._sizes = sizes[: bisect_left(sizes, max_batch) + 1]
        longest = -(-max_len // cache.block_size)
        tokens = () if cache.paged_decode else GATHERED_TOKENS
        gathered = {min(longest, -(-count // cache.block_size)) for count in tokens}
        self._widths = sorted(gathered or {longest})
        self._prepared: tuple[torch.Tensor, ...] = ()
        self._lengths = torch.ones(self._sizes[-1], dtype=torch.int32, device=decoder.device)
        self._captures: dict[tuple[int, int], _Capture] = {}
        self._reach = 1  # blocks of the longest sequence so far: what is behind them in a table is as it was made

    @torch.inference_mode()
    def capture(self, graphs: Graphs) -> int:
        """Make the recordings; how many. Raises what the decoder or the recording raises."""
        most, device = self._sizes[-1], self._decoder.device
        nothing = torch.zeros(most, dtype=torch.int64, device=device)
        spans = [Span(-1, at, 0, 1) for at in range(most)]
        prepared = self._decoder.prepare(StepInputs(nothing, nothing, torch.arange(most, device=device), spans))
        if prepared is None:
            raise RuntimeError("the decoder cannot prepare a decode step with tensors alone")
        self._prepared = tuple(part.clone() for part in prepared)
        attend = self._cache.paged_decode or paged_decode
        for width in self._widths:
            table = torch.full((most, width), self._cache.scratch, dtype=torch.int32, device=device)
            for size in reversed(self._sizes):  # the largest first: the others find its memory
                self._captures[size, width] = self._capture(graphs, size, table[:size], attend)
        return len(self._captures)

    def _capture(self, graphs: Graphs, size: int, table: torch.Tensor, attend: PagedDecode) -> _Capture:
        prepared, lengths = tuple(part[:size] for part in self._prepared), self._lengths[:size]

        def step() -> StepOutput:
            return self._decoder.compute(prepared, None, TableAttention(self._cache, table, lengths, attend))

        return _Capture(graphs.capture(step), table)

    def run(self, chunks: Sequence[ScheduledChunk]) -> StepOutput | None:
        """Replay this step: logits and hidden states of the chunks in order, in memory of their own. ``None`` if it is
        not one of those that are recorded."""
        if any(chunk.count != 1 or chunk.rows != 1 or not chunk.sample for chunk in chunks):
            return None
        count = len(chunks)
        blocks = [-(-(chunk.start + 1) // self._cache.block_size) for chunk in chunks]
        size, width = _at_least(self._sizes, count), _at_least(self._widths, max(blocks))
        recording = self._captures.get((size, width))
        if recording is None:
            return None
        starts = np.array([chunk.start for chunk in chunks])
        device = self._decoder.device
        inputs = StepInputs(
            torch.tensor([chunk.sequence.tokens[chunk.start] for chunk in chunks], device=device),
            torch.from_numpy(starts).to(device),
            torch.arange(count, device=device),
            [Span(chunk.sequence.key, at, chunk.start, 1) for at, chunk in enumerate(chunks)],
        )
        prepared = self._decoder.prepare(inputs)
        if prepared is None:
            return None
        for buffer, part in zip(self._prepared, prepared, strict=True):
            buffer[:count].copy_(part)
        self._reach = max(self._reach, *blocks)
        table = np.full((size, min(width, self._reach)), self._cache.padding, np.int32)
        table[count:] = self._cache.scratch
        for row, chunk, filled in zip(table, chunks, blocks, strict=False):
            row[:filled] = chunk.sequence.blocks[:filled]
        lengths = np.ones(size, np.int32)
        lengths[:count] = starts + 1
        recording.table[:, : table.shape[1]].copy_(torch.from_numpy(table))
        self._lengths[:size].copy_(torch.from_numpy(lengths))
        output = recording.replay()
        self.steps += 1
        hidden = output.hidden
        return StepOutput(
            output.logits[:count].to(torch.float32, copy=True), None if hidden is None else hidden[:count].clone()
        )


class TableAttention:
    """:class:`~omni_actors.worker.engines.autoregressive.decoder.Attention` of one token per sequence. Where it is and
    what it sees is said by tensors alone, ``table`` int32 [n, blocks] and ``lengths`` int32 [n], whose content may
    change between two replays of what was recorded with it."""

    def __init__(self, cache: KVCache, table: torch.Tensor, lengths: torch.Tensor, attend: PagedDecode) -> None:
        self._cache = cache
        self._table = table
        self._lengths = lengths
        self._attend = attend
        last = lengths.to(torch.int64) - 1
        number = torch.div(last, cache.block_size, rounding_mode="floor")
        block = table.gather(1, number[:, None])[:, 0].to(torch.int64)
        self._place = last - number * cache.block_size
        self._block = block
        pages = 2 * cache.shape.kv_heads
        page = torch.arange(pages, device=table.device)
        self._slots = ((block[:, None] * pages + page) * cache.block_size + self._place[:, None]).view(-1)

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key_value: torch.Tensor,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
    ) -> torch.Tensor:
        cache = self._cache
        cache.rows[layer].index_copy_(0, self._slots, key_value.reshape(-1, key_value.shape[2]))
        keys, values = cache.halves(layer)
        return self._attend(query, keys, values, self._table, self._lengths, scale, window, softcap)

    def keep(self, side: torch.Tensor) -> None:
        cache = self._cache
        assert cache.side is not None
        rows = self._block * cache.block_size + self._place
        cache.side.view(-1, cache.shape.side).index_copy_(0, rows, side)


class CapturedRows:
    """A function of tensors [rows, …], recorded for up to ``most`` rows: ``run`` computes each row by itself and waits
    for nothing. ``row`` are inputs of one row. Raises what the recording raises."""

    def __init__(
        self,
        graphs: Graphs,
        most: int,
        run: Callable[..., tuple[torch.Tensor, ...]],
        row: tuple[torch.Tensor, ...],
    ) -> None:
        sizes = sorted(graphs.sizes)
        self._sizes = sizes[: bisect_left(sizes, most) + 1]
        self._inputs = tuple(it.expand(self._sizes[-1], *it.shape[1:]).clone() for it in row)
        self._replays: dict[int, Callable[[], tuple[torch.Tensor, ...]]] = {}
        for size in reversed(self._sizes):  # the largest first: the others find its memory
            part = tuple(it[:size] for it in self._inputs)
            self._replays[size] = graphs.capture(partial(run, *part))

    def __call__(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...] | None:
        """The results, in memory of their own; ``None`` for more rows than are recorded."""
        count = len(inputs[0])
        replay = self._replays.get(_at_least(self._sizes, count))
        if replay is None:
            return None
        for buffer, part in zip(self._inputs, inputs, strict=True):
            buffer[:count].copy_(part)
        return tuple(it[:count].clone() for it in replay())


def _at_least(ascending: list[int], least: int) -> int:
    """The first that is not below ``least``; -1 if there is none."""
    at = bisect_left(ascending, least)
    return ascending[at] if at < len(ascending) else -1
