"""A worker on an AMD GPU. ROCm's torch names the device ``cuda``, and the torch module is ``torch.cuda``.

Not verified on hardware: written against the documentation of torch's HIP semantics and amdsmi, and run on a fake
device that executes on the processor.
"""

from __future__ import annotations

import logging
import re
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

from omni_actors.platforms.platform import PlatformError
from omni_actors.platforms.runtime import Capability, Graphs, Memory
from omni_actors.platforms.runtime.torch_module import ModuleRuntime, has

if TYPE_CHECKING:
    from omni_actors.platforms.runtime.kernels import Kernels

log = logging.getLogger(__name__)

_BF16 = re.compile(r"gfx(90a|94[0-2]|950|11\d\d|12\d\d)")
_FP8 = re.compile(r"gfx(94[0-2]|950|12\d\d)")


class RocmRuntime(ModuleRuntime):
    device_type: ClassVar[str] = "cuda"
    graph_class: ClassVar[str] = "CUDAGraph"
    short: ClassVar[re.Pattern[str]] = re.compile(
        r"(HIP|CUDA) (error: )?out of memory|hipErrorOutOfMemory|(HIPBLAS|ROCBLAS|MIOPEN)_STATUS_ALLOC_FAILED"
    )
    failed: ClassVar[re.Pattern[str]] = re.compile(
        r"(HIP|CUDA) (driver )?error: |hipError[A-Z]\w*|(HIP|ROC)[A-Z]+_STATUS_[A-Z_]+|miopenStatus\w+|NCCL error"
    )

    def bring(self) -> Any:
        import torch

        if getattr(torch.version, "hip", None) is None:
            raise PlatformError(
                f"torch {torch.__version__} is not built for ROCm: install the wheel of the ROCm index of pytorch.org"
            )
        if not torch.cuda.is_available():
            raise PlatformError("torch finds no HIP device: see /dev/kfd's permissions and HIP_VISIBLE_DEVICES")
        return torch.cuda

    def choose(self) -> Kernels:
        from omni_actors.platforms.rocm.kernels import kernels

        return kernels(self.capability(), self.torch_device, has("triton"))

    def capability(self) -> Capability:
        """The architecture, as ``gfx942``."""
        properties = self.module.get_device_properties(self.torch_device)
        name = str(getattr(properties, "gcnArchName", "")).partition(":")[0] or "unknown"
        features = {"bf16"} if _BF16.fullmatch(name) else set()
        return Capability(name, frozenset(features | ({"fp8"} if _FP8.fullmatch(name) else set())))

    def memory(self) -> Memory:
        """Return the device's memory, by amdsmi if available: HIP does not count other processes' memory."""
        figures = super().memory()
        try:
            total, used = self._driver_memory()
        except Exception as error:  # not installed, no permission, a virtual function without it
            log.debug("amdsmi does not answer, HIP does: %r", error)
            return figures
        return Memory(total, max(0, total - used), figures.used, figures.peak)

    def _driver_memory(self) -> tuple[int, int]:
        """Return the device's bytes of memory, and the bytes used by all processes together."""
        amdsmi = import_module("amdsmi")
        properties = self.module.get_device_properties(self.torch_device)
        address = f"{properties.pci_domain_id:04x}:{properties.pci_bus_id:02x}:{properties.pci_device_id:02x}"
        amdsmi.amdsmi_init()
        try:
            for handle in amdsmi.amdsmi_get_processor_handles():
                if str(amdsmi.amdsmi_get_gpu_device_bdf(handle)).lower().startswith(address):
                    kind = amdsmi.AmdSmiMemoryType.VRAM
                    total = amdsmi.amdsmi_get_gpu_memory_total(handle, kind)
                    return int(total), int(amdsmi.amdsmi_get_gpu_memory_usage(handle, kind))
        finally:
            amdsmi.amdsmi_shut_down()
        raise LookupError(f"amdsmi knows no device at {address}")

    def graphs(self) -> Graphs | None:
        """Return HIP graphs if ``platforms.rocm.graphs`` is set."""
        return self.recorded() if self.options.get("graphs") else None
