"""Shared memory between workers: sealed memfd slabs, one copy on write, none on read.

The producer owns an :class:`Arena`. A slab is a memfd, mapped writable by the producer and then sealed against
shrinking, growing and any later writable mapping: a consumer can neither truncate a slab (no SIGBUS) nor write to it.
Slabs are cut into slots of one power-of-two size class, so that a freed slot serves the next payload of its class
without a page fault and nothing fragments. The kernel frees a slab when the last process with a mapping is gone; a slab
has no name that could leak.

Measured decisions. Classes at every quarter of a power of two would round up by 8 % on average instead of 25 %, but
mixed sizes then reuse each other's slots less: with 8 and with 64 payloads alive, of evenly spread sizes and of skewed
ones, the slabs take up to twice the memory and grow up to 2.5 times as often. Rounded-up bytes count against the
budget, yet no page is behind them until a larger payload of the class touches it. A new slab's pages are paid for at
the first write (1.2 ms/MiB); MAP_POPULATE, MADV_POPULATE_WRITE and fallocate cost the same or more, all at once, and
mapping a slab for reading with its pages in place saves a fifth of 0.17 ms/MiB, once: so pages are allocated on first
touch, and freed when the arena is over its budget or its worker has nothing to do for a while.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Iterable
from dataclasses import dataclass

from omni_actors.protocol.limits import ARENA_BYTES

F_ADD_SEALS = 1033
F_SEAL_SEAL = 0x01
F_SEAL_SHRINK = 0x02
F_SEAL_GROW = 0x04
F_SEAL_FUTURE_WRITE = 0x10

MIN_CLASS = 32 << 10
SLAB_BYTES = 4 << 20


@dataclass(slots=True, eq=False)
class Slab:
    """A memfd of slots of one size class."""

    id: int
    fd: int
    memory: mmap.mmap
    slot_bytes: int
    slots: int
    used: int = 0


@dataclass(slots=True, eq=False)
class Slot:
    """Memory for one payload. ``readers`` counts the routes that have not acknowledged the payload."""

    slab: Slab
    offset: int
    readers: int = 1

    def view(self, nbytes: int) -> memoryview:
        """Return the first ``nbytes`` bytes of the slot."""
        return memoryview(self.slab.memory)[self.offset : self.offset + nbytes]


class Arena:
    """A producer's slabs under a byte budget.

    ``allocate`` always succeeds: producers check ``pressed`` before work on a payload, and a request that holds no slot
    is promised one whatever the budget says, so that no request can be starved by the others' backlog. ``release``
    frees a slot; empty slabs beyond the budget are closed, and all of them by :meth:`give_back`.

        >>> arena = Arena(budget=64 << 20)
        >>> slot = arena.allocate(100_000)
        >>> arena.used_bytes  # slots have sizes of powers of two
        131072
        >>> arena.release(slot)
        >>> arena.used_bytes
        0
        >>> arena.close()
    """

    def __init__(self, budget: int = ARENA_BYTES.default) -> None:
        self.budget = budget
        self.bytes = 0
        self.used_bytes = 0
        self._free: dict[int, list[Slot]] = {}
        self._slabs: dict[int, Slab] = {}
        self._next = 0
        self.closed: list[int] = []
        """Slabs closed since the consumers were last told."""

    @property
    def pressed(self) -> bool:
        """Whether the budget is used up: only requests without a slot may allocate."""
        return self.used_bytes >= self.budget

    def allocate(self, nbytes: int) -> Slot:
        """Return a slot of at least ``nbytes`` bytes with one reader. Raises :class:`OSError` without memory or
        descriptors."""
        slot_bytes = MIN_CLASS if nbytes <= MIN_CLASS else 1 << (nbytes - 1).bit_length()
        free = self._free.setdefault(slot_bytes, [])
        if not free:
            size = max(SLAB_BYTES, slot_bytes)
            if self.bytes + size > self.budget:
                self._close_empty(self.budget - size)
            self._grow(slot_bytes, size)
        slot = free.pop()
        slot.readers = 1
        slot.slab.used += 1
        self.used_bytes += slot_bytes
        return slot

    def release(self, slot: Slot) -> None:
        """Count one reader as done with the slot; the last reader frees the slot."""
        slot.readers -= 1
        if slot.readers:
            return
        slot.slab.used -= 1
        self.used_bytes -= slot.slab.slot_bytes
        self._free[slot.slab.slot_bytes].append(slot)
        if self.bytes > self.budget:
            self._close_empty(self.budget)

    def give_back(self) -> None:
        """Close every empty slab. The system gets the memory back when the consumers have dropped their mappings."""
        self._close_empty(0)

    def close(self) -> None:
        """Close all slabs. Mappings of consumers, and views of this process, stay valid."""
        for slab in self._slabs.values():
            os.close(slab.fd)
        self._slabs.clear()
        self._free.clear()
        self.bytes = 0

    def _grow(self, slot_bytes: int, size: int) -> None:
        fd = os.memfd_create("omni-slab", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, size)
            memory = mmap.mmap(fd, size)
            fcntl.fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL)
        except BaseException:
            os.close(fd)
            raise
        slab = Slab(self._next, fd, memory, slot_bytes, size // slot_bytes)
        self._next += 1
        self._slabs[slab.id] = slab
        self._free[slot_bytes].extend(Slot(slab, i * slot_bytes) for i in range(slab.slots))
        self.bytes += size

    def _close_empty(self, most: int) -> None:
        """Close empty slabs until the arena has at most ``most`` bytes (or no empty slab is left)."""
        for slab in [s for s in self._slabs.values() if not s.used]:
            if self.bytes <= most:
                return
            del self._slabs[slab.id]
            free = self._free[slab.slot_bytes]
            free[:] = [slot for slot in free if slot.slab is not slab]
            self.bytes -= slab.slot_bytes * slab.slots
            self.closed.append(slab.id)
            os.close(slab.fd)


class SlabViews:
    """A consumer's read-only mappings of one producer's slabs."""

    def __init__(self) -> None:
        self._maps: dict[int, mmap.mmap] = {}

    def add(self, slab: int, fd: int) -> None:
        """Map a slab by its descriptor, which is closed here."""
        try:
            self._maps[slab] = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
        finally:
            os.close(fd)

    def forget(self, slabs: Iterable[int]) -> None:
        """Drop mappings; the kernel frees the memory when the last view is gone."""
        for slab in slabs:
            self._maps.pop(slab, None)

    def view(self, slab: int, offset: int, nbytes: int) -> memoryview:
        """Return bytes of a payload, read-only. Raises :class:`KeyError` for a slab that was never announced and
        :class:`ValueError` for a range outside the slab."""
        memory = self._maps[slab]
        if offset < 0 or offset + nbytes > len(memory):
            raise ValueError(f"range {offset}+{nbytes} lies outside slab {slab}")
        return memoryview(memory)[offset : offset + nbytes]
