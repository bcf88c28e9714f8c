"""A worker on an NVIDIA GPU.

Not verified on hardware as a whole: see the page of the platform. Written against torch's documentation of CUDA
semantics and graphs, and run on a fake device that executes on the processor.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, ClassVar

from omni_actors.platforms.platform import PlatformError
from omni_actors.platforms.runtime import Capability, DeviceTransport, Graphs
from omni_actors.platforms.runtime.torch_module import ModuleRuntime, has

if TYPE_CHECKING:
    from omni_actors.platforms.runtime.kernels import Kernels

_FEATURES = {"bf16": (8, 0), "tf32": (8, 0), "flash": (8, 0), "fp8": (8, 9), "grouped": (9, 0), "fp4": (10, 0)}
"""Feature → the first compute capability with the feature."""


class CudaRuntime(ModuleRuntime):
    """A worker's runtime on an NVIDIA GPU. Some errors of CUDA end the process's context (an illegal access, an
    assertion in a kernel, a lost device): every later call raises the same error again."""

    device_type: ClassVar[str] = "cuda"
    graph_class: ClassVar[str] = "CUDAGraph"
    short: ClassVar[re.Pattern[str]] = re.compile(
        r"CUDA (error: )?out of memory|(CUBLAS|CUDNN|CUSOLVER|CUSPARSE)_STATUS_ALLOC_FAILED"
    )
    failed: ClassVar[re.Pattern[str]] = re.compile(r"CUDA (driver )?error: |CU[A-Z]+_STATUS_[A-Z_]+|NCCL error")

    def bring(self) -> Any:
        import torch

        if torch.version.cuda is None:
            raise PlatformError(
                f"torch {torch.__version__} is not built for CUDA: install the wheel of the CUDA index of pytorch.org"
            )
        if not torch.cuda.is_available():
            raise PlatformError(
                f"torch {torch.__version__} (CUDA {torch.version.cuda}) finds no device: see nvidia-smi, whether the "
                f"driver is as new as that CUDA, and CUDA_VISIBLE_DEVICES"
            )
        return torch.cuda

    def open(self) -> None:
        from omni_actors.platforms.cuda.transport import CudaTransport

        super().open()
        self._transport = CudaTransport(self.torch_device)

    def choose(self) -> Kernels:
        from omni_actors.platforms.cuda.kernels import kernels

        return kernels(self._compute(), self.torch_device, self.options["attention"], has)

    def capability(self) -> Capability:
        """The architecture, as ``sm_90``."""
        found = self._compute()
        names = (name for name, least in _FEATURES.items() if found >= least)
        return Capability(f"sm_{found[0]}{found[1]}", frozenset(names))

    def graphs(self) -> Graphs | None:
        return self.recorded() if self.options["graphs"] else None

    def transport(self) -> DeviceTransport:
        return self._transport

    def _compute(self) -> tuple[int, int]:
        major, minor = self.module.get_device_capability(self.torch_device)
        return int(major), int(minor)
