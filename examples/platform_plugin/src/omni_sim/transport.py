"""The link between devices: a process opens a tensor of another process, without a way through host memory.

Lent device memory lies in an anonymous file (memfd) without a name. The memory is freed with the last process that has
the file open, also after ``kill -9``. A handle names a process and one of its descriptors; when the process ends, its
handles end too. Every opening is a transfer over the link, which takes time and may be cut.
"""

from __future__ import annotations

import mmap
import os
import secrets
import time
from collections.abc import Callable

import msgspec
import torch

from omni_actors.platforms.runtime import DeviceTransport, TransportError
from omni_sim.errors import SimAllocationError
from omni_sim.memory import SimMemory

_TOKEN = 16
"""Bytes in front of the tensor that identify its memory, because numbers of processes and descriptors are reused."""

_ALIGN = 64


class Handle(msgspec.Struct, array_like=True):
    pid: int
    fd: int
    token: bytes
    device: int
    shape: tuple[int, ...]
    dtype: str
    nbytes: int


class SimTransport(DeviceTransport):
    """The transport of one process on ``device``.

    ``peer_access`` says whether the device opens the memory of other devices. ``check`` raises when the device is lost.
    ``drop_at`` is the number of the transfer that fails, counted from 1, or ``None``.
    """

    kind = "sim_link"

    def __init__(
        self,
        device: int,
        memory: SimMemory,
        bandwidth: float,
        peer_access: bool,
        check: Callable[[], None],
        drop_at: int | None = None,
    ) -> None:
        self.transfers = 0
        self.transferred_bytes = 0
        self.drop_at = drop_at
        self._device = device
        self._memory = memory
        self._bandwidth = bandwidth
        self._peer_access = peer_access
        self._check = check
        self._lent: dict[bytes, tuple[int, int]] = {}
        self._opened: dict[bytes, torch.Tensor] = {}

    def export(self, tensor: torch.Tensor) -> bytes:
        self._check()
        data = tensor.contiguous().view(-1).view(torch.uint8).numpy()
        size = _ALIGN + max(1, data.nbytes)
        try:
            self._memory.reserve(size)
        except SimAllocationError as error:
            raise TransportError(str(error)) from error
        fd = os.memfd_create("sim-memory", os.MFD_CLOEXEC)
        os.ftruncate(fd, size)
        token = secrets.token_bytes(_TOKEN)
        with mmap.mmap(fd, size) as memory:
            memory[:_TOKEN] = token
            memory[_ALIGN : _ALIGN + data.nbytes] = memoryview(data)
        dtype = str(tensor.dtype).removeprefix("torch.")
        handle = msgspec.msgpack.encode(
            Handle(os.getpid(), fd, token, self._device, tuple(tensor.shape), dtype, data.nbytes)
        )
        self._lent[handle] = (fd, size)
        return handle

    def release(self, handle: bytes) -> None:
        lent = self._lent.pop(handle, None)
        if lent is not None:
            os.close(lent[0])
            self._memory.give_back(lent[1])

    def open(self, handle: bytes) -> torch.Tensor:
        self._check()
        try:
            it = msgspec.msgpack.decode(handle, type=Handle)
        except msgspec.DecodeError as error:
            raise TransportError(f"simLinkOpen: no handle of this driver: {error}") from error
        if it.device != self._device and not self._peer_access:
            raise TransportError(f"simLinkOpen: device {self._device} has no access to device {it.device}")
        self.transfers += 1
        if self.transfers == self.drop_at:
            raise TransportError("simLinkOpen: the link was cut (it was planned so)")
        begun = time.monotonic()
        try:
            fd = os.open(f"/proc/{it.pid}/fd/{it.fd}", os.O_RDONLY | os.O_CLOEXEC)
            try:
                # A private mapping: a write to opened memory goes to a copy.
                memory = mmap.mmap(fd, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
            finally:
                os.close(fd)
        except (OSError, ValueError) as error:
            raise TransportError(f"simLinkOpen: process {it.pid} has no such memory any more") from error
        if memory[:_TOKEN] != it.token or len(memory) < _ALIGN + it.nbytes:
            raise TransportError(f"simLinkOpen: process {it.pid} has other memory there")
        if self._bandwidth:
            # Like a copy by a device's copy engine, the call takes as long as the bytes take on the link.
            time.sleep(max(0.0, it.nbytes / self._bandwidth - (time.monotonic() - begun)))
        self.transferred_bytes += it.nbytes
        flat = torch.frombuffer(memory, dtype=torch.uint8, offset=_ALIGN, count=it.nbytes) if it.nbytes else None
        dtype = getattr(torch, it.dtype)
        tensor = torch.empty(it.shape, dtype=dtype) if flat is None else flat.view(dtype).view(it.shape)
        self._opened[handle] = tensor
        return tensor

    def close(self, handle: bytes) -> None:
        self._opened.pop(handle, None)  # unmapped with the last view of it
