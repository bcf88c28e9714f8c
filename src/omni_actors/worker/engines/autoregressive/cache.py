"""The bookkeeping of the paged KV cache: the contents and users of each block, without tensors.

A *block* holds the keys and values of ``block_size`` consecutive tokens, in every layer. A full block of computed
tokens may be *published* under the hash of all tokens up to its end, so that a later request with the same beginning
reuses the block instead of computing it. A published block without users stays until its room is needed; the least
recently used block is evicted first.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence


class OutOfBlocks(Exception):
    """No block is free, and none can be evicted."""


def block_hash(parent: bytes, tokens: Sequence[int]) -> bytes:
    """Return the hash of a full block: of its tokens and of the hash of the block before (``parent``; empty for the
    first).

    The hash is cryptographic, since two prompts with equal hashes would read each other's keys.
    """
    return hashlib.blake2b(parent + array("q", tokens).tobytes(), digest_size=16).digest()


class BlockPool:
    """Blocks ``0 … total - 1`` with reference counts, and the names of the published ones.

    A block is *used* (someone holds a reference), *cached* (published, nobody holds one) or *free*.
    """

    def __init__(self, total: int, block_size: int, prefix_cache: bool = True) -> None:
        if total < 1 or block_size < 1:
            raise ValueError(f"a cache of {total} blocks of {block_size} tokens can hold nothing")
        self.total = total
        self.block_size = block_size
        self.prefix_cache = prefix_cache
        self._refs = [0] * total
        self._names: list[bytes | None] = [None] * total
        self._by_name: dict[bytes, int] = {}
        self._free = list(range(total - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()  # longest unused first

    @property
    def available(self) -> int:
        """The number of blocks that :meth:`allocate` can still give."""
        return len(self._free) + len(self._cached)

    @property
    def used(self) -> int:
        return self.total - self.available

    @property
    def cached(self) -> int:
        return len(self._cached)

    def blocks_for(self, tokens: int) -> int:
        """How many blocks so many tokens fill."""
        return -(-tokens // self.block_size)

    def allocate(self, count: int) -> list[int]:
        """``count`` blocks of unknown content with one reference each, all or none.

        Raises :class:`OutOfBlocks`.
        """
        if count > self.available:
            raise OutOfBlocks
        return [self._take() for _ in range(count)]

    def share(self, blocks: Iterable[int]) -> None:
        """Add a reference to each of these used blocks."""
        for block in blocks:
            if not self._refs[block]:
                raise ValueError(f"block {block} is not in use")
            self._refs[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        """Remove a reference to each block. A published block without users stays cached.

        The last of the given blocks is evicted first, since the end of a sequence is shared less often than its
        beginning.
        """
        for block in reversed(list(blocks)):
            refs = self._refs[block] = self._refs[block] - 1
            if refs < 0:
                raise ValueError(f"block {block} is released more often than it was taken")
            if refs == 0:
                if self._names[block] is None:
                    self._free.append(block)
                else:
                    self._cached[block] = None

    def publish(self, block: int, name: bytes) -> None:
        """Let others find this used block, whose tokens are all computed. If another block has the name already, it
        stays the one that is found."""
        if self.prefix_cache and self._names[block] is None and name not in self._by_name:
            self._names[block] = name
            self._by_name[name] = block

    def discard(self, blocks: Iterable[int]) -> list[int]:
        """Unpublish the used blocks with one reference only, and return them."""
        own = [b for b in blocks if self._refs[b] == 1]
        for block in own:
            self._forget(block)
        return own

    def find(self, names: Iterable[bytes]) -> list[int]:
        """Take a reference to each of the blocks with these names, up to the first that is not there."""
        found: list[int] = []
        for name in names:
            block = self._by_name.get(name)
            if block is None:
                break
            if not self._refs[block]:
                del self._cached[block]
            self._refs[block] += 1
            found.append(block)
        return found

    def _take(self) -> int:
        if self._free:
            block = self._free.pop()
        else:
            block, _ = self._cached.popitem(last=False)
            self._forget(block)
        self._refs[block] = 1
        return block

    def _forget(self, block: int) -> None:
        name = self._names[block]
        if name is not None:
            del self._by_name[name]
            self._names[block] = None
