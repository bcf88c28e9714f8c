"""The three parts of an autoregressive step that compute for many requests, with the failure of one request isolated.

The parts are the network's pass, the draws, and the family's hook after the draws
(:mod:`omni_actors.worker.isolation`). A pass may be repeated in parts: the repetition writes the same keys and values
to the same places, and no token counts as computed before the pass has returned. A draw overwrites its logits, so the
logits must be computed again before a repeated draw.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from omni_actors.platforms.runtime.kernels import Kernels
from omni_actors.worker.engines.autoregressive.adapter import AutoregressiveAdapter, SampledToken
from omni_actors.worker.engines.autoregressive.choice import Choice
from omni_actors.worker.engines.autoregressive.decoder import StepOutput
from omni_actors.worker.engines.autoregressive.runner import ModelRunner
from omni_actors.worker.engines.autoregressive.sampling import SampledBatch, sample
from omni_actors.worker.engines.autoregressive.sequence import ScheduledChunk
from omni_actors.worker.engines.autoregressive.sequence import Sequence as TokenSequence
from omni_actors.worker.isolation import BatchLimit, Faults, halve_by_request, run_bisecting

Pick = tuple[Choice, int]
"""A choice that a token is due of, and the row of its logits."""


@dataclass(frozen=True, slots=True)
class Computed:
    """The result of a pass: ``chunk.rows`` rows of ``output`` for each of ``chunks``, in order.

    ``output`` is ``None`` if the whole pass failed. Chunks of a request that has ``failed`` may be among ``chunks``.
    """

    chunks: list[ScheduledChunk]
    output: StepOutput | None
    failed: Mapping[int, Exception]


@dataclass(frozen=True, slots=True)
class Draws:
    """The completed draws: picks with their tokens."""

    picks: list[Pick]
    sampled: SampledBatch
    failed: Mapping[int, Exception] = field(default_factory=dict)


class IsolatedStep:
    """Runs steps of one engine. ``limit`` counts the tokens of a pass."""

    def __init__(
        self,
        runner: ModelRunner,
        adapter: AutoregressiveAdapter,
        most: int,
        faults: Faults,
        token_bytes: Callable[[int], bytes],
        kernels: Kernels,
    ) -> None:
        self.limit = BatchLimit(most)
        self.shortages = 0
        """Steps in which memory was short."""
        self._runner = runner
        self._adapter = adapter
        self._faults = faults
        self._token_bytes = token_bytes
        self._kernels = kernels

    def compute(self, chunks: list[ScheduledChunk]) -> Computed:
        """Run the network over these chunks: in one pass, unless that raises, or did lately for lack of memory."""
        limit = self.limit
        passes = [chunks] if limit.now >= limit.most else list(_pack(chunks, limit.now))
        parts = run_bisecting(passes, self._runner.run, _key_of_chunk, self._faults, _cut)
        if parts.short:
            self.shortages += 1
            # What does not fit even alone says nothing about the others.
            if parts.done and not any(map(self._faults.is_out_of_memory, parts.failed.values())):
                limit.shrink(max(sum(chunk.count for chunk in part) for part, _ in parts.done))
        elif parts.done:
            limit.succeeded()
        done = [chunk for part, _ in parts.done for chunk in part]
        return Computed(done, _joined([output for _, output in parts.done]), parts.failed)

    def draw(self, picks: list[Pick], output: StepOutput, sources: Mapping[int, TokenSequence]) -> Draws:
        """Choose a token for each pick. ``sources`` says which sequence's last computed token a row of ``output`` comes
        after."""
        rows = [row for _, row in picks]
        logits = output.logits
        chosen = logits if rows == list(range(len(logits))) else logits[rows]
        try:
            return Draws(picks, self._sample(chosen, picks))
        except Exception as error:
            self._faults.classify(error)
            halves = halve_by_request(picks, _key_of_pick)
            if not halves:
                return Draws([], SampledBatch([], [], []), {_key_of_pick(picks[0]): error})

        def again(part: list[Pick]) -> SampledBatch:
            rows = sorted({row for _, row in part})
            chunks = [ScheduledChunk(sources[row], sources[row].computed - 1, 1, True) for row in rows]
            logits = self._runner.run(chunks).logits
            return self._sample(logits[[rows.index(row) for _, row in part]], part)

        parts = run_bisecting(halves, again, _key_of_pick, self._faults)
        token_ids, logprobs, broken, drawn = [], [], [], list[Pick]()
        for part, sampled in parts.done:
            broken += [len(drawn) + i for i in sampled.broken]
            drawn += part
            token_ids += sampled.token_ids
            logprobs += sampled.logprobs
        return Draws(drawn, SampledBatch(token_ids, logprobs, broken), parts.failed)

    def after_sampling(self, drawn: Sequence[SampledToken], output: StepOutput) -> Mapping[int, Exception]:
        """The family's turn (:meth:`AutoregressiveAdapter.sampled`): who failed in it."""
        return run_bisecting(
            [list(drawn)], lambda part: self._adapter.sampled(part, output), lambda it: it.key, self._faults
        ).failed

    def _sample(self, logits: torch.Tensor, picks: list[Pick]) -> SampledBatch:
        return sample(logits, [choice.sampling_state for choice, _ in picks], self._token_bytes, self._kernels)


def _key_of_chunk(chunk: ScheduledChunk) -> int:
    return chunk.sequence.key


def _key_of_pick(pick: Pick) -> int:
    return pick[0].sequence.key


def _joined(outputs: list[StepOutput]) -> StepOutput | None:
    if len(outputs) < 2:
        return outputs[0] if outputs else None
    hidden = [output.hidden for output in outputs if output.hidden is not None]
    return StepOutput(torch.cat([output.logits for output in outputs]), torch.cat(hidden) if hidden else None)


def _pack(chunks: Sequence[ScheduledChunk], most: int) -> list[list[ScheduledChunk]]:
    """The chunks in passes of at most so many tokens, longer ones in pieces."""
    passes: list[list[ScheduledChunk]] = [[]]
    room = most
    for chunk in chunks:
        while chunk.count > room:
            if room:
                first, chunk = _split(chunk, room)
                passes[-1].append(first)
            passes.append([])
            room = most
        passes[-1].append(chunk)
        room -= chunk.count
    return [part for part in passes if part]


def _cut(part: list[ScheduledChunk]) -> Sequence[list[ScheduledChunk]]:
    """Cut a request's part in two; return none for a part of one token."""
    if len(part) > 1:
        return [part[: len(part) // 2], part[len(part) // 2 :]]
    (chunk,) = part
    if chunk.count < 2:
        return ()
    first, second = _split(chunk, chunk.count // 2)
    return [[first], [second]]


def _split(chunk: ScheduledChunk, count: int) -> tuple[ScheduledChunk, ScheduledChunk]:
    """A chunk's first ``count`` tokens, and the others."""
    first = ScheduledChunk(chunk.sequence, chunk.start, count, False)
    return first, ScheduledChunk(chunk.sequence, chunk.start + count, chunk.count - count, chunk.sample)
