"""The model runner: it turns chunks of sequences into one call of the network, and returns logits in their order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from omni_actors.platforms.runtime import Graphs
from omni_actors.platforms.runtime.kernels import Kernels
from omni_actors.worker.checks import WarmUpError
from omni_actors.worker.engines.autoregressive.attention import Extent, KVCache, PagedAttention, flat_order
from omni_actors.worker.engines.autoregressive.cache import BlockPool
from omni_actors.worker.engines.autoregressive.checks import check_step
from omni_actors.worker.engines.autoregressive.decoder import (
    CapturableDecoder,
    Decoder,
    LeadingDecoder,
    Span,
    StepInputs,
    StepOutput,
)
from omni_actors.worker.engines.autoregressive.graphs import CapturedSteps
from omni_actors.worker.engines.autoregressive.rank_messages import Attach, Copy, Pass, ZeroBlocks
from omni_actors.worker.engines.autoregressive.sequence import ScheduledChunk
from omni_actors.worker.engines.autoregressive.sequence import Sequence as TokenSequence
from omni_actors.worker.ranks import Followers


class ModelRunner:
    """Runs a decoder over a paged cache of ``blocks`` blocks. ``followers`` are the ranks among which the decoder is
    shared out with this one: they do the same, and have caches of their own."""

    def __init__(
        self, decoder: Decoder, blocks: int, block_size: int, kernels: Kernels, followers: Followers | None = None
    ) -> None:
        self.decoder = decoder
        self.captured: CapturedSteps | None = None
        self.cache = KVCache(decoder.kv_shape, blocks, block_size, decoder.device, kernels)
        self._followers = followers
        if followers is not None:
            followers.broadcast(Attach(blocks, block_size))

    @property
    def shared(self) -> bool:
        """Whether other ranks compute parts of the decoder."""
        return self._followers is not None

    def copy(self, source: int, target: int) -> None:
        """Give block ``target`` the content of block ``source``."""
        if self._followers is not None:
            self._followers.broadcast(Copy(source, target))
        self.cache.copy(source, target)

    def zero_blocks(self, blocks: Sequence[int]) -> None:
        """Make blocks zero: see :meth:`KVCache.zero_blocks`."""
        if self._followers is not None:
            self._followers.broadcast(ZeroBlocks(list(blocks)))
        self.cache.zero_blocks(blocks)

    def warm_up(self, pool: BlockPool, max_len: int, most: int = 16) -> None:
        """Run a prompt of at most ``most`` tokens, and a decode, as far as there is room for them in free blocks, which
        are clean and free again: so that the first request does not pay for what is made on first use. Raises what the
        network raises, and :class:`WarmUpError` when it computes no numbers."""
        count = min(most, max_len - 1, pool.available * pool.block_size - 1)
        if count <= 0:
            return
        sequence = TokenSequence(-1, 0, 0, [0] * count, count, blocks=pool.allocate(pool.blocks_for(count + 1)))
        outputs = [self.run([ScheduledChunk(sequence, 0, count, True)])]
        sequence.tokens.append(0)
        outputs.append(self.run([ScheduledChunk(sequence, count, 1, True)]))
        self.zero_blocks(sequence.blocks)
        sequence.release(pool)
        # A logit of minus infinity is a token that a family rules out.
        if any(not output.logits.amax(-1).isfinite().all() for output in outputs):
            raise WarmUpError("logits")

    def capture(self, graphs: Graphs, max_batch: int, max_len: int) -> int:
        """Record steps of up to ``max_batch`` decodes of sequences of up to ``max_len`` tokens; how many recordings
        there are. Raises RuntimeError where the decoder, or something in it, cannot be recorded: steps run as they are
        written then."""
        name = type(self.decoder).__name__
        if not isinstance(self.decoder, CapturableDecoder):
            raise RuntimeError(f"{name} does not part what it prepares from what it computes")
        steps = CapturedSteps(self.decoder, self.cache, graphs, max_batch, max_len)
        count: int = steps.capture(graphs)
        self.captured = steps
        return count

    @torch.inference_mode()
    def run(self, chunks: Sequence[ScheduledChunk]) -> StepOutput:
        """Compute the chunks in one pass. Returns float32 logits [n, vocab_size] (and hidden states, if the decoder
        gives them): ``chunk.rows`` rows for each, in order. The sequences themselves are not advanced.

        Raises what the decoder raises; where followers had begun the pass too, what their part in it means
        (:meth:`Followers.part`): it cannot be tried again."""
        if self.captured is not None and (replayed := self.captured.run(chunks)) is not None:
            return replayed
        extents = [Extent(c.start, c.count, c.sequence.blocks) for c in chunks]
        order = sorted(range(len(chunks)), key=lambda i: flat_order(extents[i]))
        starts = [0] * len(chunks)
        spans: list[Span] = []
        tokens: list[int] = []
        for i in order:
            chunk = chunks[i]
            starts[i] = len(tokens)
            spans.append(Span(chunk.sequence.key, len(tokens), chunk.start, chunk.count))
            tokens += chunk.sequence.tokens[chunk.start : chunk.start + chunk.count]
        rows: list[int] = []
        for start, chunk in zip(starts, chunks, strict=True):
            rows += (start + place - 1 - chunk.start for place in chunk.logprob_positions)
            if chunk.sample:
                rows.append(start + chunk.count - 1)
        ordered = [extents[i] for i in order]
        inputs = self.inputs(tokens, rows, ordered, spans)
        if self._followers is None:
            return self.compute(inputs, ordered)
        if isinstance(self.decoder, LeadingDecoder):
            inputs = replace(inputs, known=self.decoder.known(inputs))
        self._followers.broadcast(Pass.of(tokens, rows, ordered, spans, inputs.known))
        try:
            return self.compute(inputs, ordered)
        except Exception as error:
            raise self._followers.failure_of(error) from error

    def inputs(
        self, tokens: list[int], rows: list[int], extents: Sequence[Extent], spans: Sequence[Span]
    ) -> StepInputs:
        """Make the inputs of a pass over ``tokens``, the tokens of ``extents`` side by side.

        ``rows`` and ``spans`` are places among the tokens.
        """
        positions = np.concatenate([np.arange(it.start, it.end) for it in extents])
        device = self.decoder.device
        return StepInputs(
            torch.tensor(tokens, device=device),
            torch.from_numpy(positions).to(device),
            torch.tensor(rows, dtype=torch.int64, device=device),
            spans,
        )

    def compute(self, inputs: StepInputs, extents: Sequence[Extent], *, whole: bool = True) -> StepOutput:
        """One pass; ``extents`` are in :func:`flat_order`. In inference mode. ``whole`` says that this rank gets the
        whole logits: then they are looked at."""
        attention = PagedAttention(self.cache, extents)
        output = self.decoder.forward(inputs, attention)
        if whole:
            check_step(self.decoder, inputs, output)
        return StepOutput(output.logits.float(), output.hidden)
