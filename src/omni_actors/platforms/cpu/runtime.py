"""A worker on the processor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from omni_actors.platforms.cpu.platform import usable_memory
from omni_actors.platforms.runtime import Capability, DeviceRuntime, Memory

if TYPE_CHECKING:
    from omni_actors.platforms.kernels import Kernels


class CpuRuntime(DeviceRuntime):
    @property
    def kernels(self) -> Kernels:
        from omni_actors.platforms.cpu.kernels import KERNELS

        return KERNELS

    def capability(self) -> Capability:
        import torch

        return Capability(torch.backends.cpu.get_cpu_capability().lower())

    def memory(self) -> Memory:
        return Memory(usable_memory(), None)
