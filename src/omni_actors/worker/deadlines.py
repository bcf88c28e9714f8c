"""The deadlines of the requests in a worker."""

from __future__ import annotations

import heapq
import time
from collections.abc import Container

_SLACK = 64


class RequestDeadlines:
    """Deadlines by request key, on this process's monotonic clock. Adding is O(log n). Entries of finished requests are
    removed lazily: the heap holds at most about twice as many entries as there are requests."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, key: int, budget_s: float, requests: Container[int], count: int) -> None:
        """Add the deadline of request ``key``, ``budget_s`` seconds from now. ``requests`` are the keys of the
        ``count`` requests that are here now."""
        if len(self._heap) > 2 * count + _SLACK:
            self._heap = [entry for entry in self._heap if entry[1] in requests]
            heapq.heapify(self._heap)
        heapq.heappush(self._heap, (time.monotonic() + budget_s, key))

    def passed(self) -> list[int]:
        """Return the keys whose deadline has passed, each once."""
        heap = self._heap
        if not heap or heap[0][0] > (now := time.monotonic()):
            return []
        found = []
        while heap and heap[0][0] <= now:
            found.append(heapq.heappop(heap)[1])
        return found
