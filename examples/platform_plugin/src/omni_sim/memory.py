"""The device's memory: what lies in it, and the limit.

The tensors are torch's, in host memory. What operations give is looked at (:mod:`omni_sim.computing`), and each large
storage counts from when it is first seen until torch has freed it; smaller ones are not worth the bookkeeping. What
torch cannot see is reserved by whoever makes it: reordered weights, and what is lent over the link.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.multiprocessing.reductions import StorageWeakRef

from omni_sim.errors import SimAllocationError

if TYPE_CHECKING:
    import torch

LARGE = 64 << 10
"""Bytes from which on a storage counts."""


class SimMemory:
    """``limit`` in bytes."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.peak = 0
        self.refusals = 0
        self._seen: dict[int, tuple[StorageWeakRef, int]] = {}
        """Storages by their address, which stays theirs as long as the weak reference is kept."""
        self._used = 0
        self._sweep_at = 256

    def used(self) -> int:
        self.sweep()
        return self._used

    def account(self, tensor: torch.Tensor) -> None:
        """Count the tensor's storage, unless it counts already. Raises :class:`SimAllocationError`: then it does not,
        and the caller must not keep it."""
        storage = tensor.untyped_storage()
        nbytes = storage.nbytes()
        if nbytes < LARGE or storage._cdata in self._seen:
            return
        self._take(nbytes)
        self._seen[storage._cdata] = (StorageWeakRef(storage), nbytes)
        if len(self._seen) > self._sweep_at:
            self.sweep()
            self._sweep_at = 2 * len(self._seen) + 256

    def reserve(self, nbytes: int) -> None:
        """Count memory that is no tensor's, until :meth:`give_back`. Raises :class:`SimAllocationError`."""
        self._take(nbytes)

    def give_back(self, nbytes: int) -> None:
        self._used -= nbytes

    def sweep(self) -> None:
        """Forget the storages that torch has freed."""
        for address, (storage, nbytes) in list(self._seen.items()):
            if storage.expired():
                del self._seen[address]
                self._used -= nbytes

    def _take(self, nbytes: int) -> None:
        if self._used + nbytes > self.limit:
            self.sweep()
        if self._used + nbytes > self.limit:
            self.refusals += 1
            raise SimAllocationError(
                f"simDeviceAlloc: {nbytes} bytes asked for, {max(0, self.limit - self._used)} of {self.limit} left"
            )
        self._used += nbytes
        self.peak = max(self.peak, self._used)
