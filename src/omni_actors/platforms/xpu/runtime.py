"""A worker on an Intel GPU, by torch's own support; intel-extension-for-pytorch is used if installed.

Not verified on hardware: written against torch's documentation of ``torch.xpu``, and run on a fake device that executes
on the processor.
"""

from __future__ import annotations

import logging
import re
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

from omni_actors.platforms.platform import Fault, PlatformError
from omni_actors.platforms.runtime import Capability, Graphs, Memory
from omni_actors.platforms.runtime.torch_module import ModuleRuntime, has

if TYPE_CHECKING:
    from omni_actors.platforms.runtime.kernels import Kernels

log = logging.getLogger(__name__)

EXTENSION = "intel_extension_for_pytorch"

MAX_SERIES = 13136561920
"""The architecture of Max 1100 and 1550, which have no fused attention."""

_EXHAUSTED = re.compile(r"(UR_RESULT|PI|ZE_RESULT)_ERROR_OUT_OF_RESOURCES")
"""A text of Level Zero for a lack of memory, and also for a kernel that needs a feature the device lacks."""


class XpuRuntime(ModuleRuntime):
    device_type: ClassVar[str] = "xpu"
    graph_class: ClassVar[str] = "XPUGraph"
    short: ClassVar[re.Pattern[str]] = re.compile(
        r"XPU out of memory|(UR_RESULT|PI|ZE_RESULT)_ERROR_OUT_OF_(DEVICE|HOST)_MEMORY"
    )
    failed: ClassVar[re.Pattern[str]] = re.compile(
        r"(UR_RESULT|PI|ZE_RESULT)_ERROR_\w+|level_zero backend failed|Native API failed|XPU error|oneCCL"
    )
    lost: ClassVar[re.Pattern[str]] = re.compile(r"(UR_RESULT|PI|ZE_RESULT)_ERROR_DEVICE_(LOST|NOT_FOUND)")

    extension: Any = None
    """The module intel_extension_for_pytorch; ``None`` if it is missing or cannot be imported."""

    def bring(self) -> Any:
        import torch

        if has(EXTENSION):  # before any computation, since the extension replaces operators
            try:
                self.extension = import_module(EXTENSION)
            except Exception as error:  # the extension ends with an error under another version of torch
                log.warning("%s cannot be imported and is left out: %r", EXTENSION, error)
        module = getattr(torch, "xpu", None)
        if module is None or not module.is_available():
            raise PlatformError(
                f"torch {torch.__version__} finds no Intel GPU: it must be built for XPU (the wheel of pytorch.org's "
                "xpu index), and Level Zero's driver must see the device (sycl-ls)"
            )
        return module

    def choose(self) -> Kernels:
        from omni_actors.platforms.xpu.kernels import kernels

        return kernels(self.capability())

    def capability(self) -> Capability:
        """Return the device's name, with the features ``bf16``, ``fp64`` and, if it exists, ``fused_attention``."""
        properties = self.module.get_device_properties(self.torch_device)
        features = {"bf16"} if self.module.is_bf16_supported() else set()
        features |= {"fp64"} if getattr(properties, "has_fp64", False) else set()
        facts = self.module.get_device_capability(self.torch_device)
        features |= {"fused_attention"} if facts.get("architecture") != MAX_SERIES else set()
        return Capability(str(properties.name), frozenset(features))

    def memory(self) -> Memory:
        """Return the device's memory. For a device without a count of free memory, free is all memory not taken by the
        process."""
        try:
            return super().memory()
        except RuntimeError as error:
            log.debug("the device does not say what is free: %r", error)
        device = self.torch_device
        total = int(self.module.get_device_properties(device).total_memory)
        used, peak = int(self.module.memory_allocated(device)), int(self.module.max_memory_allocated(device))
        return Memory(total, None, used, peak)

    def fault(self, error: BaseException) -> Fault:
        if isinstance(error, RuntimeError) and _EXHAUSTED.search(str(error)):
            return Fault.MEMORY if self._answers() else Fault.DEVICE
        return super().fault(error)

    def graphs(self) -> Graphs | None:
        """Return XPU graphs if ``platforms.xpu.graphs`` is set and torch has graphs (2.11 and later)."""
        return self.recorded() if self.options.get("graphs") else None
