"""The scheduler: it chooses the tokens of each step, among all sequences.

Decode comes first: every running sequence that needs one token gets it. The rest of the step's token budget goes to
prompts, in pieces, oldest first. When blocks run out, the youngest running sequence is preempted: its blocks are freed,
its tokens stay, and the tokens are computed again like a prompt. If the prompt was computed elsewhere, the keys and
values of the sequence wait in host memory instead, at most those of the sequences that ran at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain

from omni_actors.connectors.payload import Payload
from omni_actors.worker.engines.autoregressive.cache import BlockPool
from omni_actors.worker.engines.autoregressive.sequence import ScheduledChunk, Sequence


@dataclass(frozen=True, slots=True)
class Swap:
    """Swapping of sequences: ``save`` copies computed keys and values to host memory, ``restore`` writes them to
    blocks."""

    save: Callable[[Sequence], Payload]
    restore: Callable[[Sequence, Payload], object]


class Scheduler:
    """The scheduler of sequences. ``waiting`` sequences hold no blocks, ``running`` sequences do; both are in order of
    arrival.

    A sequence alone always fits: the caller adds no sequence that could grow beyond the pool.
    """

    def __init__(self, pool: BlockPool, max_running: int, step_tokens: int, swap: Swap | None = None) -> None:
        self.pool = pool
        self.swap = swap
        self.max_running = max_running
        self.step_tokens = max(step_tokens, max_running)
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.preemptions = 0
        self.prefix_hit_tokens = 0

    @property
    def runnable(self) -> bool:
        return any(s.pending > 0 for s in chain(self.running, self.waiting))

    def add(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)

    def adopt(self, sequence: Sequence) -> None:
        """Add a sequence with blocks, all of whose tokens but the last are computed."""
        self.running.append(sequence)
        self.running.sort(key=_order)

    def fork(self, parent: Sequence, child: Sequence) -> int | None:
        """Start ``child``, whose tokens begin with all computed tokens of ``parent``, from the parent's blocks.

        Full blocks are shared. A child without room waits like any other sequence.

        Returns:
            The block for the child's copy of the parent's partly filled last block (the last of ``child.blocks``), or
            ``None`` if there is no block to copy.
        """
        full, rest = divmod(parent.computed, self.pool.block_size)
        if len(self.running) >= self.max_running or self.pool.available < bool(rest):
            if self.swap is not None:
                siblings = (s.saved for s in self.waiting if s.key == child.key and s.saved is not None)
                child.saved = next(siblings, None) or self.swap.save(parent)
            self._requeue(child)
            return None
        self.pool.share(parent.blocks[:full])
        copy = self.pool.allocate(1)[0] if rest else None
        child.blocks = parent.blocks[:full] + ([] if copy is None else [copy])
        child.computed = parent.computed
        child.cached = parent.cached
        self.running.append(child)
        self.running.sort(key=_order)
        return copy

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence, waiting or running, and free its blocks."""
        if sequence in self.running:
            self.running.remove(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
        sequence.saved = None
        sequence.release(self.pool)

    def schedule(self, ready: Callable[[int], bool]) -> list[ScheduledChunk]:
        """Choose the next step's chunks, and allocate their blocks.

        Sequences of requests that are not ``ready`` (without credit) keep their blocks and wait. The result is empty if
        no sequence can run.
        """
        chunks = self._decodes(ready)
        budget = self.step_tokens - len(chunks)
        starved = False
        for sequence in [s for s in self.running if s.pending > 1]:
            if budget and ready(sequence.key):
                count = self._grow(sequence, min(sequence.pending, budget))
                starved = starved or not count
                budget -= self._add_chunk(chunks, sequence, count)
        if not starved:
            self._admit(chunks, budget, ready)
        if not chunks:
            self._break_deadlock(chunks, ready)
        return chunks

    def _decodes(self, ready: Callable[[int], bool]) -> list[ScheduledChunk]:
        chunks: list[ScheduledChunk] = []
        for sequence in [s for s in self.running if s.pending == 1]:
            if sequence.blocks and ready(sequence.key):  # one preempted meanwhile has no blocks
                while not self._grow(sequence, 1):
                    victim = self._victim()
                    self._preempt(victim)
                    if victim is sequence:
                        break
                else:
                    self._add_chunk(chunks, sequence, 1)
        return chunks

    def _admit(self, chunks: list[ScheduledChunk], budget: int, ready: Callable[[int], bool]) -> None:
        for sequence in list(self.waiting):
            if not budget or len(self.running) >= self.max_running:
                return
            if sequence.pending < 1 or not ready(sequence.key):
                continue
            # At least one token is computed anew: its logits are wanted.
            found = self._lookup(sequence)
            if self.pool.blocks_for(len(sequence.tokens) + 1) - len(found) > self.pool.available:
                self.pool.release(found)
                return  # nobody overtakes
            self.waiting.remove(sequence)
            self.running.append(sequence)
            self.running.sort(key=_order)
            sequence.blocks = found
            sequence.computed = len(found) * self.pool.block_size
            self.prefix_hit_tokens += sequence.computed
            if sequence.cached is None:
                sequence.cached = min(sequence.computed, sequence.prompt_len)
            if sequence.saved is not None:
                self._restore(sequence, sequence.saved)
            budget -= self._add_chunk(chunks, sequence, self._grow(sequence, min(sequence.pending, budget)))

    def _lookup(self, sequence: Sequence) -> list[int]:
        if not (self.pool.prefix_cache and sequence.reuse):
            return []
        limit = len(sequence.tokens) - 1 - (0 if sequence.sealed else 1)
        if sequence.logprob_positions:
            limit = min(limit, sequence.logprob_positions.start - 1)  # the logits before those tokens are in no cache
        return self.pool.find(sequence.full_block_hashes(limit, self.pool.block_size))

    def _break_deadlock(self, chunks: list[ScheduledChunk], ready: Callable[[int], bool]) -> None:
        """Let the oldest ready prompt take blocks from the youngest, if prompts wait for each other's blocks.

        Without this, prompts with parts of the pool could wait for each other, or for a prompt without credit.
        """
        sequence = next((s for s in self.running if s.pending > 0 and ready(s.key)), None)
        if sequence is None:
            return
        count = self._grow(sequence, min(sequence.pending, self.step_tokens))
        while not count and (victim := self._victim()) is not sequence:
            self._preempt(victim)
            count = self._grow(sequence, min(sequence.pending, self.step_tokens))
        self._add_chunk(chunks, sequence, count)

    def _grow(self, sequence: Sequence, count: int) -> int:
        """Blocks for ``count`` more tokens, or for as many as there is room for: how many."""
        size = self.pool.block_size
        room = (len(sequence.blocks) + self.pool.available) * size - sequence.computed
        count = min(count, room)
        missing = self.pool.blocks_for(sequence.computed + count) - len(sequence.blocks)
        if missing > 0:
            sequence.blocks += self.pool.allocate(missing)
        return count

    def _add_chunk(self, chunks: list[ScheduledChunk], sequence: Sequence, count: int) -> int:
        if count:
            end = sequence.computed + count
            sample = sequence.sealed and end == len(sequence.tokens)
            chunks.append(ScheduledChunk(sequence, sequence.computed, count, sample))
        return count

    def _victim(self) -> Sequence:
        """Return the youngest running sequence whose blocks may be taken. There must be one."""
        return next(s for s in reversed(self.running) if not s.pinned)

    def _preempt(self, sequence: Sequence) -> None:
        self.preemptions += 1
        if self.swap is not None:
            sequence.saved = self.swap.save(sequence)
        self.running.remove(sequence)
        sequence.release(self.pool)
        self._requeue(sequence)

    def _restore(self, sequence: Sequence, saved: Payload) -> None:
        assert self.swap is not None
        count: int = saved.meta["tokens"]
        sequence.blocks = self.pool.allocate(self.pool.blocks_for(count))
        self.swap.restore(sequence, saved)
        sequence.computed = count
        sequence.saved = None

    def _requeue(self, sequence: Sequence) -> None:
        at = next((i for i, s in enumerate(self.waiting) if s.order > sequence.order), len(self.waiting))
        self.waiting.insert(at, sequence)


def _order(sequence: Sequence) -> int:
    return sequence.order
