"""The queue of requests before admission, and their order.

The first criterion is the *effective priority*: the priority of a request (a lower number is earlier), less one for
every ``ageing_s`` seconds of waiting, so that no priority is starved. Within one priority tenants take turns by
start-time fair queueing: the virtual start time of a request is one behind the tenant's previous request, and never
before the virtual time of the latest served request. The requests of one tenant are first come, first served.

Requests of one class need the same stages; only the first request of each class can be next. The queue has no bound:
the queue gives the first request of each class, and the order among these.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar


@dataclass(slots=True, eq=False)
class QueuedRequest:
    """A queued request. ``request_class`` stands for the needed stages, ``since`` is the start of the wait, ``size``
    the size in bytes."""

    request_class: Hashable
    priority: int
    tenant: str
    since: float
    size: int = 0
    virtual_start: int = 0
    number: int = 0
    gone: bool = False
    """Whether the request is no longer in the queue."""

    def effective_priority(self, now: float, ageing_s: float) -> int:
        """Return the priority after ageing."""
        return self.priority - int((now - self.since) / ageing_s)


Q = TypeVar("Q", bound=QueuedRequest)


@dataclass(slots=True, eq=False)
class _ClassHeap(Generic[Q]):
    """The requests of one priority and one class, by virtual start time. Removed requests are skipped at the front, and
    swept out once they are most of the heap."""

    heap: list[tuple[int, int, Q]] = field(default_factory=list)
    gone: int = 0

    def first(self) -> Q | None:
        heap = self.heap
        while heap and heap[0][2].gone:
            heapq.heappop(heap)
            self.gone -= 1
        return heap[0][2] if heap else None

    def count_gone(self) -> None:
        self.gone += 1
        if 2 * self.gone > len(self.heap) + 16:
            self.heap = [entry for entry in self.heap if not entry[2].gone]
            heapq.heapify(self.heap)
            self.gone = 0


@dataclass(slots=True, eq=False)
class _Priority(Generic[Q]):
    """The requests of one priority. ``virtual_time`` is the virtual start time of the latest served request;
    ``tenants`` has the waiting requests of each tenant, in order."""

    classes: dict[Hashable, _ClassHeap[Q]] = field(default_factory=dict)
    virtual_time: int = 0
    tenants: dict[str, dict[Q, None]] = field(default_factory=dict)

    def last_of_largest_tenant(self) -> Q:
        """Return the last request of the tenant with the most requests."""
        largest = max(self.tenants, key=lambda tenant: len(self.tenants[tenant]))
        return next(reversed(self.tenants[largest]))


class WaitQueue(Generic[Q]):
    """The waiting requests of a deployment. :meth:`enqueue` and :meth:`remove` are O(log n), :meth:`heads` is
    O(classes)."""

    def __init__(self, ageing_s: float) -> None:
        self.size = 0
        """Bytes of all requests in the queue together."""
        self._ageing_s = ageing_s
        self._priorities: dict[int, _Priority[Q]] = {}
        self._numbers = itertools.count()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Q]:
        for priority in self._priorities.values():
            for requests in priority.tenants.values():
                yield from requests

    @property
    def priorities(self) -> list[int]:
        """The priorities of the requests in the queue, each once."""
        return list(self._priorities)

    def enqueue(self, request: Q) -> None:
        """Add a request."""
        priority = self._priorities.setdefault(request.priority, _Priority())
        request.number = next(self._numbers)
        own = priority.tenants.setdefault(request.tenant, {})
        start = priority.virtual_time
        request.virtual_start = max(start, next(reversed(own)).virtual_start + 1) if own else start
        own[request] = None
        same = priority.classes.setdefault(request.request_class, _ClassHeap())
        heapq.heappush(same.heap, (request.virtual_start, request.number, request))
        request.gone = False
        self.size += request.size
        self._count += 1

    def remove(self, request: Q, *, served: bool = False) -> None:
        """Remove a request, ``served`` or at the end of its wait. A second call does nothing."""
        if request.gone:
            return
        request.gone = True
        self._count -= 1
        self.size -= request.size
        priority = self._priorities[request.priority]
        same = priority.classes[request.request_class]
        same.count_gone()
        if same.first() is None:
            del priority.classes[request.request_class]
        own = priority.tenants[request.tenant]
        del own[request]
        if served:
            priority.virtual_time = max(priority.virtual_time, request.virtual_start)
        if not own:
            del priority.tenants[request.tenant]
            if not priority.tenants:
                del self._priorities[request.priority]

    def heads(self, now: float, fits: Callable[[Q], bool]) -> list[Q]:
        """Return the first request of each class, in the order of admission.

        A priority ages with the oldest head that ``fits``, if there is one: a request without capacity does not age the
        others.
        """
        found = []
        for priority in self._priorities.values():
            firsts = [first for same in priority.classes.values() if (first := same.first()) is not None]
            oldest = min(list(filter(fits, firsts)) or firsts, key=lambda request: request.since)
            effective = oldest.effective_priority(now, self._ageing_s)
            found += [((effective, oldest.since, it.virtual_start, it.number), it) for it in firsts]
        found.sort(key=lambda pair: pair[0])
        return [request for _, request in found]

    def to_evict(self, newcomer: Q, now: float) -> Q:
        """Return the request to evict from a queue made too long by ``newcomer``, which is in the queue.

        The first choice is the last request of the least urgent priority, if the effective priority is behind the
        newcomer's. The second choice, within the newcomer's priority, is the last request of the tenant with the most
        requests, if the newcomer's tenant has fewer. Else the newcomer is evicted.
        """
        furthest = max(self._priorities)
        if furthest > newcomer.priority:
            candidate = self._priorities[furthest].last_of_largest_tenant()
            if candidate.effective_priority(now, self._ageing_s) > newcomer.priority:
                return candidate
        own = self._priorities[newcomer.priority]
        candidate = own.last_of_largest_tenant()
        more = len(own.tenants[candidate.tenant]) > len(own.tenants[newcomer.tenant])
        return candidate if more else newcomer
