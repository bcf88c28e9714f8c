"""A worker on a Moore Threads GPU, by torch_musa. With torchada installed, code for ``cuda`` runs on the GPU too.

Not verified on hardware: written against torch_musa's and mate's sources, and run on a fake device that executes on the
processor.
"""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any, ClassVar

from omni_actors.platforms.musa.patches import PATCHES
from omni_actors.platforms.platform import PlatformError
from omni_actors.platforms.runtime import Capability, Graphs, Patch, torch_module
from omni_actors.platforms.runtime.torch_module import ModuleRuntime, has

if TYPE_CHECKING:
    from omni_actors.platforms.runtime.kernels import Kernels

log = logging.getLogger(__name__)


class MusaRuntime(ModuleRuntime):
    patches: ClassVar[tuple[Patch, ...]] = PATCHES
    device_type: ClassVar[str] = "musa"
    graph_class: ClassVar[str] = "MUSAGraph"
    short: ClassVar[re.Pattern[str]] = re.compile(
        r"MUSA (error: )?out of memory|musaErrorMemoryAllocation|MU[A-Z]+_STATUS_ALLOC_FAILED"
    )
    failed: ClassVar[re.Pattern[str]] = re.compile(
        r"MUSA (driver )?error: |musaError[A-Z]\w*|MU[A-Z]+_STATUS_[A-Z_]+|MCCL"
    )

    def bring(self) -> Any:
        import torch

        torch_module.bring("torch_musa", "install the torch_musa that belongs to this torch, with the MUSA SDK")
        module = getattr(torch, "musa", None)
        if module is None or not module.is_available():
            raise PlatformError("torch_musa finds no device: see mthreads-gmi and MUSA_VISIBLE_DEVICES")
        return module

    def choose(self) -> Kernels:
        from omni_actors.platforms.musa.kernels import kernels

        return kernels(self._version(), self.torch_device, has("mate"))

    def capability(self) -> Capability:
        major, minor = self._version()
        return Capability(f"mp_{major}{minor}", frozenset({"bf16"} if (major, minor) >= (2, 2) else ()))

    def _version(self) -> tuple[int, int]:
        major, minor = self.module.get_device_capability(self.torch_device)
        return int(major), int(minor)

    def graphs(self) -> Graphs | None:
        """Return MUSA graphs if ``platforms.musa.graphs`` is set."""
        return self.recorded() if self.options.get("graphs") else None
