"""NVIDIA's devices, as far as the serving process needs to know them: which there are, and how a worker sees its own.

Found without torch and without opening a device: by NVML where the package ``nvidia-ml-py`` is installed and the
driver's library answers, else by the driver's files. Both are cut by ``CUDA_VISIBLE_DEVICES``, so that ``cuda:0`` is
the first device that this process may use, in PCI order.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, ClassVar

from omni_actors.platforms.cpu import CpuPlatform
from omni_actors.platforms.platform import Detection, Device, Fault, OmniPlatform, PlatformError

log = logging.getLogger(__name__)

VISIBLE = "CUDA_VISIBLE_DEVICES"

_NAME = re.compile(r"cuda:(\d{1,4})")

_MEMORY = re.compile(r"CUDA (error: )?out of memory|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED")

_CUDA = re.compile(r"CUDA (driver )?error: |CU[A-Z]+_STATUS_[A-Z_]+")
"""What torch says when a call of CUDA or of a library on it has failed."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A device of the machine. ``memory`` in bytes."""

    uuid: str | None
    model: str
    memory: int | None


class CudaPlatform(OmniPlatform):
    """A deployment for it may be planned (``--platform cuda``, or in a deploy file) on a machine without any."""

    contract = 1
    name = "cuda"
    runtime = "omni_actors.platforms.cuda.runtime:CudaRuntime"
    collectives = "nccl"
    default_dtype = "bfloat16"
    dtypes = ("bfloat16", "float16", "float32")
    options: ClassVar[Mapping[str, Any]] = {"tf32": False}
    options_doc: ClassVar[Mapping[str, str]] = {
        "tf32": "Let float32 stages use TF32 where torch does by itself: convolutions are faster, with errors of 1e-3."
    }
    plannable: ClassVar[bool] = True

    def detect(self) -> Detection:
        """Whether there is a device that this process may use and that the installed torch could."""
        present = machine_gpus()
        if not present:
            return Detection(False, False, "no NVIDIA device on this machine")
        found = self._found()
        if not found:
            return Detection(False, True, f"{VISIBLE}={os.environ.get(VISIBLE)!r} shows none of {len(present)} devices")
        if cpu_build := _torch_for_cpu():
            reason = f"there is an NVIDIA device, but the installed torch ({cpu_build}) is built for CPUs only"
            return Detection(False, True, reason)
        return Detection(True, True, ", ".join(gpu.model for _, gpu in found))

    def devices(self) -> tuple[Device, ...]:
        """Those that this process may use. Where none is found, ``cuda:0``, so that a deployment can be planned."""
        found = self._found()
        named = [Device(f"cuda:{i}", gpu.memory, gpu.model, gpu.uuid) for i, (_, gpu) in enumerate(found)]
        return tuple(named) or (Device("cuda:0", None, "not on this machine"),)

    def cores(self) -> int:
        return CpuPlatform().cores()

    def check_device(self, device: str) -> None:
        """Any ``cuda:N`` where no device is found: ``serve`` asks again before it starts a worker there."""
        if _NAME.fullmatch(device) is None:
            raise PlatformError(f"platform 'cuda' has no device '{device}'; they are called cuda:0, cuda:1, …")
        if self._found():
            super().check_device(device)

    def worker_environment(self, device: str, threads: int, options: Mapping[str, Any]) -> dict[str, str]:
        """The CPU's thread counts, and a world in which ``device`` is the only one and float32 is float32."""
        index = _index(device)
        found = self._found()
        entry = found[index][0] if index < len(found) else str(index)
        order = os.environ.get("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
        threading = CpuPlatform().worker_environment(device, threads, {})
        exact = {} if options.get("tf32") else {"NVIDIA_TF32_OVERRIDE": "0"}  # of cuBLAS and cuDNN
        return {**threading, **exact, VISIBLE: entry, "CUDA_DEVICE_ORDER": order}

    def worker_device(self, device: str) -> str:
        """``cuda:0``: the worker sees its own device only."""
        return "cuda:0"

    def fault(self, error: BaseException) -> Fault:
        """Some errors of CUDA end the process's context (an illegal access, an assertion in a kernel, a device that is
        gone): every later call raises them again. So the device is asked."""
        text = str(error)
        if isinstance(error, RuntimeError) and _MEMORY.search(text):
            return Fault.MEMORY
        if isinstance(error, RuntimeError) and _CUDA.search(text):
            return Fault.OTHER if _answers() else Fault.DEVICE
        return super().fault(error)

    def free_memory(self) -> None:
        """torch's allocator keeps what was freed in blocks of the sizes that were asked for."""
        if (torch := sys.modules.get("torch")) is not None:
            torch.cuda.empty_cache()

    def _found(self) -> list[tuple[str, Gpu]]:
        return visible(machine_gpus(), os.environ.get(VISIBLE))


def _answers() -> bool:
    """Whether the device still does what this process asks."""
    if (torch := sys.modules.get("torch")) is None:
        return True
    try:
        torch.cuda.synchronize()
    except Exception:
        return False
    return True


def visible(gpus: list[Gpu], setting: str | None) -> list[tuple[str, Gpu]]:
    """What CUDA would show of ``gpus`` under this ``CUDA_VISIBLE_DEVICES``, each with the entry that stands for it.

    By CUDA's rules: entries are indices or the beginning of a UUID (also of a MIG slice), the first one that is no
    device ends the list, and a list with one twice shows nothing.
    """
    if setting is None:
        return [(str(index), gpu) for index, gpu in enumerate(gpus)]
    found = []
    for entry in (part.strip() for part in setting.split(",")):
        if entry.isdecimal():
            if int(entry) >= len(gpus):
                break
            found.append((entry, gpus[int(entry)]))
        elif entry.startswith("GPU-"):
            fitting = [gpu for gpu in gpus if gpu.uuid is None or gpu.uuid.startswith(entry)]
            if not fitting:
                break
            found.append((entry, fitting[0] if len(fitting) == 1 else Gpu(entry, "NVIDIA GPU", None)))
        elif entry.startswith("MIG-") and gpus:
            found.append((entry, Gpu(entry, "MIG slice", None)))
        else:
            break
    entries = [entry for entry, _ in found]
    return found if len(set(entries)) == len(entries) else []


def machine_gpus(root: Path = Path("/")) -> list[Gpu]:
    """The machine's devices in PCI order, whatever may be visible. Missing and broken libraries are survived."""
    nodes = [node for node in (root / "dev").glob("nvidia*") if node.name.removeprefix("nvidia").isdecimal()]
    listed = sorted((root / "proc/driver/nvidia/gpus").glob("*/information"))
    # Windows' subsystem for Linux and Jetson boards have nodes of other names, and one GPU each.
    others = [node for name in ("dxg", "nvhost-gpu", "nvgpu") if (node := root / "dev" / name).exists()]
    if not nodes and not listed and not others:
        return []
    try:
        if root == Path("/"):
            return _by_nvml()
    except Exception as error:  # the package is not there, or its driver's library is not, or that is broken
        log.debug("NVML does not answer, the driver's files do: %r", error)
    return [_by_file(file) for file in listed] or [Gpu(None, "NVIDIA GPU", None) for _ in nodes or others[:1]]


def _by_nvml() -> list[Gpu]:
    nvml = import_module("pynvml")
    nvml.nvmlInit()
    try:
        found = []
        for index in range(nvml.nvmlDeviceGetCount()):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            memory = int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
            found.append(Gpu(_text(nvml.nvmlDeviceGetUUID(handle)), _text(nvml.nvmlDeviceGetName(handle)), memory))
        return found
    finally:
        nvml.nvmlShutdown()


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _by_file(file: Path) -> Gpu:
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    said = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    uuid = said.get("GPU UUID", "")
    return Gpu(uuid if uuid.startswith("GPU-") and "?" not in uuid else None, said.get("Model") or "NVIDIA GPU", None)


def _torch_for_cpu() -> str | None:
    """The version of an installed torch that knows no CUDA, by its name alone."""
    try:
        installed = version("torch")
    except PackageNotFoundError:
        return None
    return installed if installed.endswith("+cpu") else None


def _index(device: str) -> int:
    match = _NAME.fullmatch(device)
    if match is None:
        raise PlatformError(f"'{device}' is no device of platform 'cuda'")
    return int(match[1])
