"""What a device's runtime says of an exception that a worker's computation raised."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from omni_actors.pipelines.factory import resolve
from omni_actors.platforms import Fault
from omni_actors.platforms.cpu.runtime import CpuRuntime
from omni_actors.platforms.cuda import CudaPlatform
from omni_actors.platforms.cuda.runtime import CudaRuntime
from omni_actors.platforms.platform import default_options
from omni_actors.platforms.runtime import DeviceRuntime

NO_MEMORY = [
    MemoryError(),
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB."),
    RuntimeError("[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory: you tried …"),
]


CPU = CpuRuntime("cpu", {})


def cuda(synchronize: Callable[[], None] = lambda: None) -> CudaRuntime:
    runtime = CudaRuntime("cuda:0", default_options(CudaPlatform))
    runtime.module = SimpleNamespace(synchronize=synchronize)
    return runtime


@pytest.mark.parametrize("runtime", [CPU, cuda()], ids=lambda it: type(it).__name__)
@pytest.mark.parametrize("error", NO_MEMORY, ids=lambda it: type(it).__name__)
def test_what_is_about_memory_is_known(runtime: DeviceRuntime, error: Exception) -> None:
    assert runtime.fault(error) is Fault.MEMORY


def test_what_torch_itself_raises_for_lack_of_memory_is_known() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 55, dtype=torch.uint8)
    assert CPU.fault(caught.value) is Fault.MEMORY


@pytest.mark.parametrize("error", [ValueError("x"), RuntimeError("size mismatch"), KeyError("allocate memory")])
def test_anything_else_is_not(error: Exception) -> None:
    assert cuda().fault(error) is Fault.OTHER


@pytest.mark.parametrize(
    "message",
    [
        "CUDA error: device-side assert triggered",
        "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm`",
    ],
)
def test_a_device_that_does_not_answer_any_more_is_lost(message: str) -> None:
    asked: list[str] = []

    def synchronize() -> None:
        asked.append(message)
        if lost:
            raise RuntimeError(message)

    lost = False
    assert cuda(synchronize).fault(RuntimeError(message)) is Fault.OTHER
    lost = True
    assert cuda(synchronize).fault(RuntimeError(message)) is Fault.DEVICE
    assert len(asked) == 2


@pytest.mark.parametrize(
    "message", ["CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"]
)
def test_memory_that_cuda_itself_lacks_is_no_lost_device(message: str) -> None:
    assert cuda().fault(RuntimeError(message)) is Fault.MEMORY


def test_a_worker_is_told_its_platform() -> None:
    hello = resolve("stub", platform="cpu").hello("a", 0, 1)
    assert hello.platform == "omni_actors.platforms.cpu.platform:CpuPlatform"
