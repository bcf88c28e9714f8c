"""The queue of requests that wait to be admitted, and the order in which they are.

First by *effective priority*: the priority of a request (a lower number is earlier), less one for every ``ageing_s``
seconds that the request has waited, so that no priority is starved by the ones before it. Within one priority tenants
take turns by start-time fair queueing: the virtual start time of a request is one behind that of its tenant's last
request, and never before the virtual time of the requests that are being served. The requests of one tenant are first
come, first served.

Requests of one class need the same stages; only the first one of each class can be next. The queue has no bound: it
says which request is first in each class, and in which order those are.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar


@dataclass(slots=True, eq=False)
class QueuedRequest:
    """A request in the queue. ``request_class`` stands for the stages that the request needs, ``since`` is the time at
    which its wait began, ``size`` its size in bytes."""

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
    """The requests of one priority and one class, by virtual start time. Requests that are gone are skipped when they
    come to the front, and swept out once they are most of the heap."""

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
    """The requests of one priority. ``virtual_time`` is the virtual start time of the request that was served last;
    ``tenants`` has the waiting requests of each tenant, in order."""

    classes: dict[Hashable, _ClassHeap[Q]] = field(default_factory=dict)
    virtual_time: int = 0
    tenants: dict[str, dict[Q, None]] = field(default_factory=dict)

    def last_of_largest_tenant(self) -> Q:
        """Return the last request of the tenant with the most requests."""
        largest = max(self.tenants, key=lambda tenant: len(self.tenants[tenant]))
        return next(reversed(self.tenants[largest]))


class WaitQueue(Generic[Q]):
    """All requests that wait. :meth:`enqueue` and :meth:`remove` are O(log n), :meth:`heads` is O(classes)."""

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
        """Remove a request, which was ``served`` or does not wait any longer. A second call does nothing."""
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
        """Return the first request of each class, in the order in which they are to be admitted.

        A priority ages with its oldest head that ``fits``, if one does: a request for which there is no capacity does
        not age the others.
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
        """Return the request to evict when the queue has become too long by ``newcomer``, which is in the queue.

        That is the last request of the least urgent priority, if its effective priority is behind the newcomer's. Else
        it is, within the newcomer's priority, the last request of the tenant with the most requests, if that tenant has
        more than the newcomer's. Else it is the newcomer.
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
