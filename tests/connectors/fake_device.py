"""A device for device links: its memory is host memory, and a handle is a name in a table known to all ends."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from omni_actors.connectors.device import DeviceMemory
from omni_actors.connectors.payload import DeviceTensor
from omni_actors.platforms.runtime import TransportError


@dataclass
class Tensor:
    """A tensor on the device ``at``, which counts its copies to the host."""

    array: np.ndarray[Any, Any]
    at: str = "d0"
    fetched: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.array.shape)

    @property
    def dtype(self) -> str:
        return str(self.array.dtype)

    @property
    def nbytes(self) -> int:
        return self.array.nbytes

    def host(self) -> np.ndarray[Any, Any]:
        self.fetched += 1
        return self.array

    def copy(self) -> Tensor:
        return Tensor(self.array.copy(), self.at)

    def finite(self) -> bool:
        return bool(np.isfinite(self.array).all())


@dataclass
class Memory:
    """A process's view of the devices: devices in ``sees`` can be opened. ``lent`` is the table of all processes'
    exports."""

    lent: dict[bytes, Tensor]
    at: str = "d0"
    sees: frozenset[str] = frozenset({"d0"})
    capacity: int = 1 << 30
    opened: list[bytes] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def takes(self, tensor: DeviceTensor) -> bool:
        return isinstance(tensor, Tensor) and tensor.at == self.at

    def export(self, tensor: DeviceTensor) -> bytes:
        if tensor.nbytes > self.capacity:
            raise TransportError("no room")
        handle = f"{id(self)}:{next(self.numbers)}".encode()
        assert isinstance(tensor, Tensor)
        self.lent[handle] = tensor.copy()
        return handle

    def release(self, handle: bytes) -> None:
        tensor = self.lent.pop(handle, None)
        if tensor is not None:
            tensor.array[...] = -1  # another one's by now: whoever reads it still reads that

    def probe(self) -> bytes:
        return self.export(Tensor(np.arange(4), self.at))

    def reaches(self, handle: bytes) -> bool:
        return self.lent[handle].at in self.sees

    def open(self, handle: bytes) -> Tensor:
        if handle not in self.lent or self.lent[handle].at not in self.sees:
            raise TransportError("not to be reached")
        self.opened.append(handle)
        return self.lent[handle]

    def close(self, handle: bytes) -> None:
        self.opened.remove(handle)


def _is_a_memory(it: Memory) -> DeviceMemory:
    return it
