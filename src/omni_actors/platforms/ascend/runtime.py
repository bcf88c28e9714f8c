"""A worker on an Ascend NPU, by torch_npu.

Not verified on hardware: written against the documentation of torch_npu and CANN, and run on a fake device that
executes on the processor.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, ClassVar

from omni_actors.platforms.ascend.patches import PATCHES
from omni_actors.platforms.platform import PlatformError
from omni_actors.platforms.runtime import Capability, Patch, torch_module
from omni_actors.platforms.runtime.torch_module import ModuleRuntime

if TYPE_CHECKING:
    from pathlib import Path

    from omni_actors.platforms.runtime.kernels import Kernels

_GENERATIONS = (
    (range(200, 206), "310P", ()),
    (range(220, 226), "A2", ("bf16",)),
    (range(250, 256), "A3", ("bf16",)),
    (range(260, 261), "A5", ("bf16", "fp8")),
)
"""Numbers of ``torch_npu.npu.get_soc_version`` by generation of chips."""


class AscendRuntime(ModuleRuntime):
    """A worker's runtime on an NPU. Steps are not captured as graphs: the fused attention takes lengths from the host,
    so a graph would repeat the lengths of its capture."""

    patches: ClassVar[tuple[Patch, ...]] = PATCHES
    device_type: ClassVar[str] = "npu"
    graph_class: ClassVar[str] = "NPUGraph"
    short: ClassVar[re.Pattern[str]] = re.compile(r"NPU out of memory|error code is 20(7001|7018|0000)\b")
    """Texts of a lack of memory: 207001 and 207018 are the runtime's allocation failures, 200000 is acl's."""
    failed: ClassVar[re.Pattern[str]] = re.compile(
        r"NPU (function )?error|error code is [1-5]\d{5}\b|call aclnn?\w* failed|ERR\d{5}|E[A-Z]\d{4}: |HCCL"
    )
    lost: ClassVar[re.Pattern[str]] = re.compile(r"error code is 5070(10|53|54)\b|UCE ERROR|HBM MULTI BIT ECC ERROR")
    """Texts of a lost device: the host has lost the device's heartbeat, or the device's memory has uncorrectable
    errors."""

    def bring(self) -> Any:
        torch_npu = torch_module.bring(
            "torch_npu", "install the torch-npu that belongs to this torch, and source CANN's set_env.sh"
        )
        if not torch_npu.npu.is_available():
            raise PlatformError("torch_npu finds no device: see npu-smi info and ASCEND_RT_VISIBLE_DEVICES")
        return torch_npu.npu

    def choose(self) -> Kernels:
        from omni_actors.platforms.ascend.kernels import kernels

        return kernels(self.torch_device, self.nz_weights)

    @property
    def nz_weights(self) -> bool:
        """Return whether weights are laid out as NZ on loading: always on the 310P, which computes from no other
        layout; elsewhere by ``platforms.ascend.nz``."""
        return bool(self.options.get("nz")) or self._generation()[0] == "310P"

    def capability(self) -> Capability:
        generation, features = self._generation()
        return Capability(f"{self.module.get_device_name(self.torch_device)} ({generation})", frozenset(features))

    def _generation(self) -> tuple[str, tuple[str, ...]]:
        version = int(self.module.get_soc_version())
        for versions, name, features in _GENERATIONS:
            if version in versions:
                return name, features
        return f"soc {version}", ()

    def profiler(self, folder: Path) -> Any:
        """Return torch_npu's profiler, since torch's profiler does not see the device."""
        profiler = torch_module.bring("torch_npu.profiler", "install torch-npu")
        return profiler.profile(on_trace_ready=profiler.tensorboard_trace_handler(str(folder)))
