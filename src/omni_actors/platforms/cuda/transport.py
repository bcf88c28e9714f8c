"""Tensors from one process to another on the GPU, by CUDA's memory handles (``cudaIpcGetMemHandle``).

Not run on hardware. Written from CUDA's documentation of interprocess communication and the documentation of torch's
own multiprocessing.

Exported tensors lie in the transport's own slabs, cut into slots of one power-of-two size class as host memory is
(:mod:`omni_actors.connectors.shared_memory`): one copy on the device at export, no copy at opening. Torch can therefore
never reuse memory mapped by other processes. A slab is shared once, opened once by each reading process, and kept as
long as the process: torch counts the readers of shared memory in files of its own, and after a reader's ``kill -9`` the
count would stay too high for ever. Such a file outlives a killed producer, and a reader removes the file.

A handle is opened on the reader's own device, whatever the producer's device is: with peer access the driver maps
another GPU's memory, even of a GPU hidden by ``CUDA_VISIBLE_DEVICES`` (since CUDA 10.1), and refuses otherwise. Users
of the transport try a handle first (:mod:`omni_actors.connectors.device`).
"""

from __future__ import annotations

import os
import secrets
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec
import torch

from omni_actors.platforms.runtime import DeviceTransport, TransportError

KIND = "cuda_ipc"

MIN_CLASS = 64 << 10
"""Bytes of the smallest slot."""

SLAB_BYTES = 16 << 20
"""Bytes of a slab, unless one slot is larger. CUDA shares whole allocations: to torch, this size is one of its own."""

_TOKEN = 8


class Sharing(Protocol):
    """The functions that share a storage with another process and attach it there."""

    def share(self, storage: torch.UntypedStorage) -> tuple[Any, ...]:
        """Return the key by which another process attaches, of plain builtins. Raises RuntimeError."""
        ...

    def attach(self, index: int, shared: tuple[Any, ...]) -> torch.UntypedStorage:
        """Attach on the process's own device of that number. Raises RuntimeError."""
        ...

    def bury(self, shared: tuple[Any, ...]) -> None:
        """Remove the remains of a slab after the end of its owner and of reading here."""
        ...

    def synchronize(self) -> None:
        """Return when all work queued on the current stream is done."""
        ...


class TorchSharing:
    """The sharing of torch itself, as used by :mod:`torch.multiprocessing`."""

    def share(self, storage: torch.UntypedStorage) -> tuple[Any, ...]:
        """(device, memory handle, bytes, offset in the allocation, counter's file, counter's place, event handle,
        whether to wait for the event)."""
        shared: tuple[Any, ...] = storage._share_cuda_()
        return shared

    def attach(self, index: int, shared: tuple[Any, ...]) -> torch.UntypedStorage:
        _device, *rest = shared
        return torch.UntypedStorage._new_shared_cuda(index, *rest)

    def bury(self, shared: tuple[Any, ...]) -> None:
        counter = Path("/dev/shm", os.path.basename(os.fsdecode(shared[4])))
        counter.unlink(missing_ok=True)

    def synchronize(self) -> None:
        torch.cuda.current_stream().synchronize()


class _Handle(msgspec.Struct, array_like=True):
    """A handle on the wire. ``owner`` and ``slab`` name a slab for good, ``shared`` is the key for attaching the slab,
    and ``place`` is in bytes."""

    owner: bytes
    pid: int
    slab: int
    shared: tuple[Any, ...]
    place: int
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    serial: int


@dataclass(slots=True, eq=False)
class _Slab:
    id: int
    memory: torch.Tensor
    shared: tuple[Any, ...]


@dataclass(slots=True, eq=False)
class _Slot:
    slab: _Slab
    place: int
    size: int


@dataclass(slots=True, eq=False)
class _Attached:
    pid: int
    shared: tuple[Any, ...]
    storage: torch.UntypedStorage
    readers: int = 0


class CudaTransport(DeviceTransport):
    """One process's end of the transport. ``device`` is the place of own slabs and of opened slabs of others."""

    kind = KIND

    def __init__(self, device: torch.device, sharing: Sharing | None = None) -> None:
        self._device = device
        self._sharing = sharing or TorchSharing()
        self._owner = secrets.token_bytes(_TOKEN)
        self._serial = 0
        self._slabs = 0
        self._free: dict[int, list[_Slot]] = {}
        self._lent: dict[bytes, _Slot] = {}
        self._attached: dict[tuple[bytes, int], _Attached] = {}
        self._opened: Counter[bytes] = Counter()

    def export(self, tensor: torch.Tensor) -> bytes:
        nbytes = tensor.nbytes
        try:
            slot = self._slot(nbytes)
            if nbytes:
                slot.slab.memory[slot.place : slot.place + nbytes].copy_(tensor.reshape(-1).view(torch.uint8))
            # A socket tells the reader of the copy, and no stream waits for a socket: so wait here.
            self._sharing.synchronize()
        except RuntimeError as error:  # no memory, or an allocator that does not share its own
            raise TransportError(f"{nbytes} bytes cannot be lent on {self._device}: {error}") from error
        self._serial += 1
        handle = msgspec.msgpack.encode(
            _Handle(
                self._owner,
                os.getpid(),
                slot.slab.id,
                slot.slab.shared,
                slot.place,
                str(tensor.dtype).removeprefix("torch."),
                tuple(tensor.shape),
                nbytes,
                self._serial,
            )
        )
        self._lent[handle] = slot
        return handle

    def release(self, handle: bytes) -> None:
        slot = self._lent.pop(handle, None)
        if slot is not None:
            self._free[slot.size].append(slot)

    def open(self, handle: bytes) -> torch.Tensor:
        try:
            it = msgspec.msgpack.decode(handle, type=_Handle)
            dtype = getattr(torch, it.dtype)
            attached = self._attach(it)
            flat = torch.empty(0, dtype=torch.uint8, device=self._device)
            flat.set_(attached.storage, it.place, (it.nbytes,))
            tensor = flat.view(dtype).view(it.shape)
        except (msgspec.DecodeError, AttributeError, RuntimeError) as error:
            raise TransportError(f"a handle cannot be opened on {self._device}: {error}") from error
        attached.readers += 1
        self._opened[handle] += 1
        return tensor

    def close(self, handle: bytes) -> None:
        if not self._opened[handle]:
            return
        self._opened[handle] -= 1
        if not self._opened[handle]:
            del self._opened[handle]
        it = msgspec.msgpack.decode(handle, type=_Handle)
        self._attached[it.owner, it.slab].readers -= 1
        self._sharing.synchronize()

    # ---- inside

    def _slot(self, nbytes: int) -> _Slot:
        """A place of at least so many bytes."""
        size = max(MIN_CLASS, 1 << (nbytes - 1).bit_length()) if nbytes else MIN_CLASS
        free = self._free.setdefault(size, [])
        if not free:
            memory = torch.empty(max(SLAB_BYTES, size), dtype=torch.uint8, device=self._device)
            slab = _Slab(self._slabs, memory, self._sharing.share(memory.untyped_storage()))
            self._slabs += 1
            free += (_Slot(slab, place, size) for place in range(0, memory.nbytes, size))
        return free.pop()

    def _attach(self, handle: _Handle) -> _Attached:
        key = handle.owner, handle.slab
        attached = self._attached.get(key)
        if attached is None:
            self._detach()
            storage = self._sharing.attach(self._device.index or 0, handle.shared)
            attached = self._attached[key] = _Attached(handle.pid, handle.shared, storage)
        return attached

    def _detach(self) -> None:
        """Release the slabs of ended processes."""
        for key, attached in list(self._attached.items()):
            if not attached.readers and not os.path.exists(f"/proc/{attached.pid}"):
                del self._attached[key]
                self._sharing.bury(attached.shared)
