"""The device's memory: its contents and its limit.

The tensors are torch's, in host memory. :mod:`omni_sim.computing` looks at the results of operations. A large storage
counts from the first operation with a tensor in it until torch has freed the storage. Smaller storages do not count.
Memory that torch cannot see is reserved by the code that makes it: reordered weights, and tensors lent over the link.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.multiprocessing.reductions import StorageWeakRef

from omni_sim.errors import SimAllocationError

if TYPE_CHECKING:
    import torch

LARGE = 64 << 10
"""Bytes above which a storage counts."""


class SimMemory:
    """The memory of one process on the device, with a ``limit`` in bytes."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.peak = 0
        self.refusals = 0
        self._seen: dict[int, tuple[StorageWeakRef, int]] = {}
        """Counted storages by address. A storage keeps its address while the weak reference is kept."""
        self._used = 0
        self._sweep_at = 256

    def used(self) -> int:
        self.sweep()
        return self._used

    def account(self, tensor: torch.Tensor) -> None:
        """Count the storage of a tensor, unless the storage counts already.

        Raises:
            SimAllocationError: The limit is reached. The storage does not count; the caller must not keep the tensor.
        """
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
        """Count memory outside of tensors, until :meth:`give_back`. Raises :class:`SimAllocationError` at the limit."""
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
