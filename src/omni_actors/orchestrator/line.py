"""The line of requests that wait to be admitted: whose turn it is.

Order. First by *level*: a request's priority (lower is earlier), less one for every ``ageing_s`` that it has waited, so
that no level can be kept waiting for ever by the ones before it. Within one priority tenants take turns (start-time
fair queueing: a request's turn is one behind its tenant's last one, and never before those that are being served), and
a tenant's requests are first come, first served.

Requests that need the same stages form one row; only the first of a row can be next. The line knows no bounds: it says
who is first in each row, and in which order.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar


@dataclass(slots=True, eq=False)
class Waiter:
    """A place in the line. ``shape`` says what is needed, ``since`` is when the wait began."""

    shape: Hashable
    priority: int
    tenant: str
    since: float
    size: int = 0
    turn: int = 0
    number: int = 0
    gone: bool = False
    """Not in the line (any more)."""

    def level(self, now: float, ageing_s: float) -> int:
        return self.priority - int((now - self.since) / ageing_s)


W = TypeVar("W", bound=Waiter)


@dataclass(slots=True, eq=False)
class _Row(Generic[W]):
    """Those of one priority that need the same, by their turn. Who has gone is skipped when it is their turn, and swept
    out once that is most of the row."""

    heap: list[tuple[int, int, W]] = field(default_factory=list)
    gone: int = 0

    def first(self) -> W | None:
        heap = self.heap
        while heap and heap[0][2].gone:
            heapq.heappop(heap)
            self.gone -= 1
        return heap[0][2] if heap else None

    def left(self) -> None:
        self.gone += 1
        if 2 * self.gone > len(self.heap) + 16:
            self.heap = [entry for entry in self.heap if not entry[2].gone]
            heapq.heapify(self.heap)
            self.gone = 0


@dataclass(slots=True, eq=False)
class _Class(Generic[W]):
    """Those of one priority. ``turn`` is that of the last one served; ``tenants`` has each one's waiting requests, in
    order."""

    rows: dict[Hashable, _Row[W]] = field(default_factory=dict)
    turn: int = 0
    tenants: dict[str, dict[W, None]] = field(default_factory=dict)

    def last_of_most(self) -> W:
        """The last request of the tenant that has most."""
        most = max(self.tenants, key=lambda tenant: len(self.tenants[tenant]))
        return next(reversed(self.tenants[most]))


class Line(Generic[W]):
    """All who wait. Joining and leaving are O(log n); :meth:`heads` is O(rows), which are few."""

    def __init__(self, ageing_s: float) -> None:
        self.size = 0
        """The sum of their sizes."""
        self._ageing_s = ageing_s
        self._classes: dict[int, _Class[W]] = {}
        self._numbers = itertools.count()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[W]:
        for it in self._classes.values():
            for waiting in it.tenants.values():
                yield from waiting

    @property
    def priorities(self) -> list[int]:
        """Of those in it, each once."""
        return list(self._classes)

    def join(self, waiter: W) -> None:
        it = self._classes.setdefault(waiter.priority, _Class())
        waiter.number = next(self._numbers)
        waiting = it.tenants.setdefault(waiter.tenant, {})
        waiter.turn = max(it.turn, next(reversed(waiting)).turn + 1) if waiting else it.turn
        waiting[waiter] = None
        row = it.rows.setdefault(waiter.shape, _Row())
        heapq.heappush(row.heap, (waiter.turn, waiter.number, waiter))
        waiter.gone = False
        self.size += waiter.size
        self._count += 1

    def leave(self, waiter: W, *, served: bool = False) -> None:
        """It was ``served``, or does not wait any longer. A second time is nothing."""
        if waiter.gone:
            return
        waiter.gone = True
        self._count -= 1
        self.size -= waiter.size
        it = self._classes[waiter.priority]
        row = it.rows[waiter.shape]
        row.left()
        if row.first() is None:
            del it.rows[waiter.shape]
        waiting = it.tenants[waiter.tenant]
        del waiting[waiter]
        if served:
            it.turn = max(it.turn, waiter.turn)
        if not waiting:
            del it.tenants[waiter.tenant]
            if not it.tenants:
                del self._classes[waiter.priority]

    def heads(self, now: float, fits: Callable[[W], bool]) -> list[W]:
        """The first of each row, in the order in which they come. A priority is at the level of the oldest of them that
        ``fits``, if one does: one that cannot be next lends its age to nobody."""
        found = []
        for it in self._classes.values():
            firsts = [first for row in it.rows.values() if (first := row.first()) is not None]
            oldest = min(list(filter(fits, firsts)) or firsts, key=lambda waiter: waiter.since)
            level = oldest.level(now, self._ageing_s)
            found += [((level, oldest.since, waiter.turn, waiter.number), waiter) for waiter in firsts]
        found.sort(key=lambda pair: pair[0])
        return [waiter for _, waiter in found]

    def last(self, newcomer: W, now: float) -> W:
        """Who gives way when the line is too long by this one, which is in it: the last of the least urgent priority,
        if its level is behind the newcomer's; else in the newcomer's own priority the last of the tenant that has most
        of them there, if those are more than the newcomer's; else the newcomer."""
        furthest = max(self._classes)
        if furthest > newcomer.priority:
            waiter = self._classes[furthest].last_of_most()
            if waiter.level(now, self._ageing_s) > newcomer.priority:
                return waiter
        own = self._classes[newcomer.priority]
        waiter = own.last_of_most()
        more = len(own.tenants[waiter.tenant]) > len(own.tenants[newcomer.tenant])
        return waiter if more else newcomer
