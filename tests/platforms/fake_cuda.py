"""The cuda platform with a machine that has a device, on which workers compute by the fake one.

Everything else is the builtin's: what it chooses, its runtime, its graphs. ``torch.cuda`` is stood in for while the
runtime opens. Its graphs take down what is computed, and compute it again on the same memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from tests.platforms.fake_vendors.platforms import SIM, _Fake

from omni_actors.platforms.cuda import CudaPlatform
from omni_actors.platforms.cuda.runtime import CudaRuntime


class FakeCuda(_Fake, CudaPlatform):
    contract = 1
    packages = "cuda"
    device_type = SIM
    runtime = f"{__name__}:HostCudaRuntime"


class HostCudaRuntime(CudaRuntime):
    device_type = SIM

    def bring(self) -> Any:
        import torch
        from tests.platforms.fake_vendors.host_device import HostModule, install, record
        from tests.worker.engines.recording import Strict, Tape

        class Graph:
            tape: Tape

            def pool(self) -> tuple[int, int]:
                return 0, 1

            def replay(self) -> None:
                record("CUDAGraph.replay")
                self.tape.play()

        class Cuda(HostModule):
            CUDAGraph = Graph

            def get_device_capability(self, device: Any = None) -> tuple[int, int]:
                major, minor = os.environ.get("FAKE_VENDOR_ARCHITECTURE", "8.0").split(".")
                return int(major), int(minor)

            @contextmanager
            def graph(self, graph: Graph, pool: Any = None, stream: Any = None) -> Iterator[None]:
                record("CUDAGraph.capture")
                with Strict(), Tape() as graph.tape:
                    yield

        module = Cuda("cuda")
        install(SIM, module)
        with patch.object(torch, "cuda", module), patch.object(torch.version, "cuda", "13.0"):
            return super().bring()
