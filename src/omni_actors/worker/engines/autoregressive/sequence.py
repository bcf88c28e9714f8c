"""A sequence: a growing list of tokens, with the places of its keys and values."""

from __future__ import annotations

from dataclasses import dataclass, field

from omni_actors.connectors.payload import Payload
from omni_actors.worker.engines.autoregressive.cache import BlockPool, block_hash

NOTHING = range(0)


@dataclass(slots=True, eq=False)
class Sequence:
    """One choice of a request.

    ``tokens`` are prompt and sampled tokens, from which the sequence can be computed again. The first ``computed``
    tokens have their keys and values in ``blocks``. While ``sealed`` is false more input may come: the last token then
    waits, so that a token is left to compute when the first new token is wanted.
    """

    key: int
    index: int
    order: int
    tokens: list[int]
    prompt_len: int
    sealed: bool = True
    root: bytes = b""
    """The contents of the prompt beside tokens, as part of the block hashes (empty without other contents)."""
    reuse: bool = True
    """Whether computed blocks of others may stand in for its own."""
    logprob_positions: range = NOTHING
    """Places of the tokens whose log-probabilities are wanted although they are not sampled (a prompt's own, or those
    of a resumed answer's tokens): logits before each."""
    computed: int = 0
    cached: int | None = None
    """Prompt tokens found in the cache when it first ran; ``None`` before."""
    reached: int = 0
    """The most tokens that were ever computed of it, here or where it came from."""
    pinned: bool = False
    """It is on its way out with its blocks: nobody may take them."""
    saved: Payload | None = None
    """Its keys and values in host memory, while it has no blocks."""
    blocks: list[int] = field(default_factory=list)
    block_hashes: list[bytes] = field(default_factory=list)

    def sibling(self, index: int) -> Sequence:
        """Return a new sequence for choice ``index`` of the request, with the same tokens and none of them computed."""
        return Sequence(
            self.key, index, self.order + index, list(self.tokens), self.prompt_len, root=self.root, reuse=self.reuse
        )

    @property
    def pending(self) -> int:
        """The number of tokens that can be computed now."""
        return len(self.tokens) - self.computed - (0 if self.sealed else 1)

    def full_block_hashes(self, tokens: int, block_size: int) -> list[bytes]:
        """Return the hashes of the blocks that the first ``tokens`` tokens fill."""
        count = tokens // block_size
        while len(self.block_hashes) < count:
            start = len(self.block_hashes) * block_size
            parent = self.block_hashes[-1] if self.block_hashes else self.root
            self.block_hashes.append(block_hash(parent, self.tokens[start : start + block_size]))
        return self.block_hashes[:count]

    def advance(self, count: int, pool: BlockPool) -> None:
        """Take note of ``count`` more computed tokens, and publish the blocks that are full now."""
        before = self.computed // pool.block_size
        self.computed += count
        self.reached = max(self.reached, self.computed)
        if pool.prefix_cache:
            hashes = self.full_block_hashes(self.computed, pool.block_size)
            for i in range(before, len(hashes)):
                pool.publish(self.blocks[i], hashes[i])

    def release(self, pool: BlockPool) -> None:
        """Free all blocks. The tokens stay; keys and values are lost, unless they are ``saved``."""
        pool.release(self.blocks)
        self.blocks = []
        self.computed = 0


@dataclass(slots=True)
class ScheduledChunk:
    """The part of a sequence in one step: tokens ``start … start + count - 1``.

    ``sample`` says that the last token of the part is the last of the sequence, so that its logits choose the next
    token.
    """

    sequence: Sequence
    start: int
    count: int
    sample: bool

    @property
    def num_recomputed(self) -> int:
        """How many of its tokens are prompt tokens that had been computed before."""
        known = min(self.sequence.reached, self.sequence.prompt_len)
        return max(0, min(self.start + self.count, known) - self.start)

    @property
    def logprob_positions(self) -> range:
        """The places of tokens to be scored by the logits of this chunk."""
        wanted = self.sequence.logprob_positions
        if not wanted:
            return wanted
        return range(max(wanted.start, self.start + 1), min(wanted.stop, self.start + self.count + 1))

    @property
    def rows(self) -> int:
        """The number of logits wanted from the chunk: one before each scored token, and the last if it samples."""
        return len(self.logprob_positions) + self.sample
