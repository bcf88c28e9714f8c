"""A worker on the processor."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from omni_actors.platforms.cpu.platform import NODE, usable_memory
from omni_actors.platforms.cpu.topology import features, free_memory, nodes, own_memory
from omni_actors.platforms.platform import PlatformError
from omni_actors.platforms.runtime import Capability, DeviceRuntime, Memory

if TYPE_CHECKING:
    from omni_actors.platforms.runtime.kernels import Kernels


class CpuRuntime(DeviceRuntime):
    def open(self) -> None:
        """Bind the thread, and all its later threads, to the NUMA node named in the environment. Memory follows the
        thread: the kernel takes a page from the node of the first thread to touch the page, and from other nodes if
        that node is full."""
        super().open()
        if number := os.environ.get(NODE):
            here = next((it for it in nodes() if str(it.number) == number), None)
            if here is None:
                raise PlatformError(f"NUMA node {number} has no processor that this process may use")
            os.sched_setaffinity(0, here.processors)

    @property
    def kernels(self) -> Kernels:
        from omni_actors.platforms.cpu.kernels import KERNELS

        return KERNELS

    def capability(self) -> Capability:
        """Return the widest vectors with torch kernels on the processor, as ``avx512``."""
        import torch

        return Capability(torch.backends.cpu.get_cpu_capability().lower(), features())

    def memory(self) -> Memory:
        used, peak = own_memory()
        return Memory(usable_memory(), free_memory(), used, peak)
