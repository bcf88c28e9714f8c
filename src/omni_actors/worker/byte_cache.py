"""A cache bounded by the bytes of its values; the least recently used value goes first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class ByteCache(Generic[K, V]):
    """Maps keys to values whose sizes together never exceed ``most_bytes``. Not thread-safe."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.bytes = 0
        self.hits = 0
        self.misses = 0
        self.evictions = 0
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: K) -> V | None:
        """Return the value, which becomes the most recently used, or ``None``. Counts a hit or a miss."""
        entry = self._entries.get(key)
        if entry is None:
            self.misses += 1
            return None
        self.hits += 1
        self._entries.move_to_end(key)
        return entry[0]

    def put(self, key: K, value: V, size: int) -> None:
        """Store a value of ``size`` bytes, in place of an older value of the same key, and evict others until there is
        room. A value larger than the whole cache is not stored."""
        old = self._entries.pop(key, None)
        if old is not None:
            self.bytes -= old[1]
        if size > self.most_bytes:
            return
        while self.bytes + size > self.most_bytes:
            _, (_, dropped) = self._entries.popitem(last=False)
            self.bytes -= dropped
            self.evictions += 1
        self._entries[key] = (value, size)
        self.bytes += size
