"""Deadlines of many items, kept by one task for all of them and without a cancel scope per item."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Generic, TypeVar

import trio

T = TypeVar("T")

RESOLUTION_S = 0.05
"""Seconds to which a deadline is kept. Deadlines of one slot of this length share one wake."""


class Deadlines(Generic[T]):
    """Items with a deadline each. :meth:`add` and :meth:`discard` are O(1); :meth:`run` calls ``expire`` for each item
    at its deadline."""

    def __init__(self, expire: Callable[[T], None]) -> None:
        self._expire = expire
        self._slots: dict[int, dict[T, None]] = {}
        self._next = math.inf
        self._scope = trio.CancelScope()

    def __len__(self) -> int:
        return sum(map(len, self._slots.values()))

    def add(self, item: T, deadline: float) -> int:
        """Add an item with a deadline on trio's clock. Returns the slot, for :meth:`discard`."""
        slot = math.ceil(deadline / RESOLUTION_S)
        entries = self._slots.get(slot)
        if entries is None:
            entries = self._slots[slot] = {}
        entries[item] = None
        if slot < self._next:
            self._next = slot
            self._scope.deadline = slot * RESOLUTION_S
        return slot

    def discard(self, item: T, slot: int) -> None:
        """Remove an item from its slot, if it is there."""
        entries = self._slots.get(slot)
        if entries is not None:
            entries.pop(item, None)
            if not entries:
                del self._slots[slot]

    async def run(self) -> None:
        """Call ``expire`` for items at their deadlines, until cancelled."""
        while True:
            self._next = min(self._slots, default=math.inf)
            with trio.CancelScope(deadline=self._next * RESOLUTION_S) as self._scope:
                await trio.sleep_forever()
            now = trio.current_time()
            for slot in [slot for slot in self._slots if slot * RESOLUTION_S <= now]:
                entries = self._slots.get(slot, {})
                while entries:  # one by one: an expiry may discard other items, here and in the next slots
                    item = next(iter(entries))
                    self.discard(item, slot)
                    self._expire(item)


class UniformTimeouts(Generic[T]):
    """Items with the same timeout, seldom reached. :meth:`add` and :meth:`discard` cost one entry of a dictionary, in
    the order of expiry. :meth:`run` calls ``expire`` for each item ``seconds`` after :meth:`add`, unless the item was
    discarded."""

    def __init__(self, seconds: float, expire: Callable[[T], None]) -> None:
        self._seconds = seconds
        self._expire = expire
        self._until: dict[T, float] = {}
        self._next = math.inf
        self._scope = trio.CancelScope()

    def __len__(self) -> int:
        return len(self._until)

    def add(self, item: T) -> None:
        """Add a new item. ``expire`` may add the item again."""
        until = self._until[item] = trio.current_time() + self._seconds
        if self._next == math.inf:
            self._next = self._scope.deadline = until

    def discard(self, item: T) -> None:
        """Remove an item, if it is there."""
        self._until.pop(item, None)

    async def run(self) -> None:
        """Call ``expire`` for items at their timeouts, until cancelled."""
        while True:
            self._next = next(iter(self._until.values()), math.inf)
            with trio.CancelScope(deadline=self._next) as self._scope:
                await trio.sleep_forever()
            now = trio.current_time()
            while (item := next(iter(self._until), None)) is not None and self._until[item] <= now:
                del self._until[item]
                self._expire(item)
