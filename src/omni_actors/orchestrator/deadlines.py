"""Deadlines of many requests, by one task for all of them and without a scope per request."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Generic, TypeVar

import trio

T = TypeVar("T")

RESOLUTION_S = 0.05
"""A deadline is kept to so many seconds; entries of the same slot share one wake."""


class Deadlines(Generic[T]):
    """``add`` and ``discard`` are O(1); ``run`` calls ``expire`` for each entry whose time has come."""

    def __init__(self, expire: Callable[[T], None]) -> None:
        self._expire = expire
        self._slots: dict[int, dict[T, None]] = {}
        self._next = math.inf
        self._scope = trio.CancelScope()

    def __len__(self) -> int:
        return sum(map(len, self._slots.values()))

    def add(self, item: T, deadline: float) -> int:
        """Returns the slot, for :meth:`discard`. ``deadline`` is on trio's clock."""
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
        entries = self._slots.get(slot)
        if entries is not None:
            entries.pop(item, None)
            if not entries:
                del self._slots[slot]

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self._next = min(self._slots, default=math.inf)
            with trio.CancelScope(deadline=self._next * RESOLUTION_S) as self._scope:
                await trio.sleep_forever()
            now = trio.current_time()
            for slot in [slot for slot in self._slots if slot * RESOLUTION_S <= now]:
                entries = self._slots.get(slot, {})
                while entries:  # one by one: what one leads to may discard others, here and in the next slots
                    item = next(iter(entries))
                    self.discard(item, slot)
                    self._expire(item)


class Patience(Generic[T]):
    """The same patience with each of many, which most never exhaust: ``add`` and ``discard`` cost an entry of a
    dictionary, which is in the order of expiry. ``run`` calls ``expire`` for each that was added, and not discarded for
    ``seconds``."""

    def __init__(self, seconds: float, expire: Callable[[T], None]) -> None:
        self._seconds = seconds
        self._expire = expire
        self._until: dict[T, float] = {}
        self._next = math.inf
        self._scope = trio.CancelScope()

    def __len__(self) -> int:
        return len(self._until)

    def add(self, item: T) -> None:
        """An item that is not in it. It may be added again by ``expire``."""
        until = self._until[item] = trio.current_time() + self._seconds
        if self._next == math.inf:
            self._next = self._scope.deadline = until

    def discard(self, item: T) -> None:
        self._until.pop(item, None)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self._next = next(iter(self._until.values()), math.inf)
            with trio.CancelScope(deadline=self._next) as self._scope:
                await trio.sleep_forever()
            now = trio.current_time()
            while (item := next(iter(self._until), None)) is not None and self._until[item] <= now:
                del self._until[item]
                self._expire(item)
