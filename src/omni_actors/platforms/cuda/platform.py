"""NVIDIA's devices for the serving process: the list of devices, and the environment of a worker on one device.

Devices are found by device nodes and the driver's files; then NVML and the driver's library are asked, in a process of
their own. ``CUDA_VISIBLE_DEVICES`` selects among the devices, so that ``cuda:0`` is the first device usable by the
process, in PCI order.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from omni_actors.platforms.accelerator import Accelerator, Inventory, ProbeResult, Unit, VisibleDevice, lacks_torch
from omni_actors.platforms.cpu.platform import usable_memory
from omni_actors.platforms.cuda import nvml
from omni_actors.platforms.machine import line, nodes, number_of, pci_devices, there
from omni_actors.platforms.platform import VLLM_ENGINE
from omni_actors.platforms.visibility import Chosen, by_id, choose
from omni_actors.protocol.options import Option

VISIBLE = "CUDA_VISIBLE_DEVICES"
ORDER = "CUDA_DEVICE_ORDER"
VENDOR = "0x10de"
LIBRARY = "libcuda.so.1"
MODEL = "NVIDIA GPU"

DRIVER_IS_DOWN = {9: "the driver is not loaded", 18: "the driver and its libraries are of different versions"}
"""NVML's errors that CUDA would meet too. With any other, CUDA may still work: NVML is not there, or not permitted."""

ATTENTION = ("auto", "flash", "triton", "torch")
"""The values of option ``attention``."""

GPUS = "give the container its devices (--gpus all) and NVIDIA_DRIVER_CAPABILITIES=compute,utility"


class CudaPlatform(Accelerator):
    contract = 1
    name = "cuda"
    runtime = "omni_actors.platforms.cuda.runtime:CudaRuntime"
    maker = "NVIDIA"
    device_type = "cuda"
    collectives = "nccl"
    visibility = (VISIBLE,)
    transports = ("cuda_ipc",)
    distributions: ClassVar[Mapping[str, str]] = {"torch": "cuda"}
    engines: ClassVar[Mapping[str, str]] = {**Accelerator.engines, "vllm": VLLM_ENGINE}
    vllm_builds = ("", r"cu\d+")
    default_dtype = "bfloat16"
    dtypes = ("bfloat16", "float16", "float32")
    options: ClassVar[Mapping[str, Option]] = {
        "tf32": Option(
            False,
            "Let float32 stages use TF32 where torch does by default: convolutions are faster, with errors of 1e-3.",
        ),
        "graphs": Option(True, "Record decode steps as CUDA graphs when a worker starts, and replay them."),
        "attention": Option(
            "auto",
            "Attention kernels: auto, flash (FlashAttention on the blocks in place), triton, or torch (no "
            "other package).",
            choices=ATTENTION,
        ),
    }

    def survey(self) -> Inventory:
        filed = _by_files(self.root)
        if filed is None:
            return _without_driver(self.root)
        result = self.consult(Path(nvml.__file__), {"module": "pynvml", "library": LIBRARY}, NvmlResult)
        return self.unanswered("NVML", filed.units) if result is None else merged(filed, result)

    def visible(self, inventory: Inventory) -> tuple[Sequence[VisibleDevice], str]:
        chosen, why = visible(inventory, os.environ.get(VISIBLE))
        return [VisibleDevice(unit, self._only(entry)) for entry, unit in chosen], why

    def alone(self, index: int) -> Mapping[str, str]:
        return self._only(str(index))

    def software(self) -> str:
        return lacks_torch("cuda", "CUDA", "cuda")

    def worker_environment(self, device: str, threads: int, options: Mapping[str, Any]) -> dict[str, str]:
        """Return an environment with ``device`` as the only device, and without reduced float32 precision."""
        exact = {} if options.get("tf32") else {"NVIDIA_TF32_OVERRIDE": "0"}  # of cuBLAS and cuDNN
        return {**super().worker_environment(device, threads, options), **exact}

    def _only(self, entry: str) -> Mapping[str, str]:
        return {VISIBLE: entry, ORDER: os.environ.get(ORDER, "PCI_BUS_ID")}


@dataclass(frozen=True, slots=True)
class Filed:
    """Facts from device nodes and the driver's files. ``certain`` is false for files that may belong to another
    vendor's device; ``nodes`` says whether the devices can be opened."""

    units: tuple[Unit, ...]
    certain: bool = True
    nodes: bool = True


class NvmlDevice(msgspec.Struct):
    id: str | None = None
    model: str | None = None
    memory: int | None = None
    trouble: str = ""
    parts: list[NvmlDevice] = []


class NvmlResult(ProbeResult):
    """The answer of :func:`nvml.answer`."""

    driver: str = ""
    code: int | None = None
    devices: list[NvmlDevice] = []


def visible(inventory: Inventory, setting: str | None) -> tuple[Chosen, str]:
    """Return CUDA's devices under a value of ``CUDA_VISIBLE_DEVICES``, each device with its entry in the value.

    For a device in slices, CUDA shows the first slice for the device's ordinal, and each slice for its UUID. Without a
    setting, all slices are devices here.
    """
    units = inventory.units
    if setting is None:
        return [pair for index, unit in enumerate(units) for pair in _whole(index, unit)], ""
    slices = [part for unit in units for part in unit.parts]
    gpu = by_id(units, inventory.complete)
    # The older name of a slice contains the device's UUID and differs from NVML's name.
    new = by_id(slices or [Unit("MIG slice")], bool(slices))

    def named(entry: str) -> Unit | None:
        if entry.startswith("GPU-"):
            return gpu(entry)
        if entry.startswith("MIG-GPU-"):
            return Unit("MIG slice", id=entry)
        if entry.startswith("MIG-"):
            return None if inventory.complete and not slices else new(entry)
        return None

    chosen, why = choose(units, VISIBLE, setting, named)
    return [(entry, unit.parts[0] if unit.parts else unit) for entry, unit in chosen], why


def _whole(index: int, unit: Unit) -> Chosen:
    return [(part.id or str(index), part) for part in unit.parts] or [(str(index), unit)]


def merged(filed: Filed, result: NvmlResult) -> Inventory:
    """Merge the facts of files with the answers of the driver's libraries."""
    if result.driver and not filed.certain:
        return Inventory((), note="no NVIDIA device: Windows brings no driver of it")
    if result.code in DRIVER_IS_DOWN:
        return Inventory(filed.units, f"{DRIVER_IS_DOWN[result.code]}: reload it, or restart the machine")
    if result.driver:
        why = f"NVIDIA's driver library cannot be loaded ({result.driver}): install the driver; {GPUS}"
        return Inventory(filed.units, why)
    if not result.trouble and result.devices:
        differs = filed.nodes and filed.certain and len(result.devices) != len(filed.units)
        note = f"NVML counts {len(result.devices)} devices, there are files of {len(filed.units)}" if differs else ""
        return Inventory(_known(result.devices, filed), note=note, complete=True)
    if not filed.nodes:
        return Inventory(filed.units, f"the driver has devices, and this process has no nodes of them: {GPUS}")
    if not result.trouble:
        return Inventory(filed.units, f"the driver shows this process none of the devices: {GPUS}")
    return Inventory(filed.units, note=f"without NVML: {result.trouble}")


def _known(devices: list[NvmlDevice], filed: Filed) -> tuple[Unit, ...]:
    """Return NVML's devices, with missing facts (the memory of a GPU on the processor's chip) taken from files."""
    units = list(map(_unit, devices))
    if len(units) == len(filed.units):
        units = [
            replace(unit, memory=own.memory if unit.memory is None else unit.memory)
            for unit, own in zip(units, filed.units, strict=True)
        ]
    return tuple(units)


def _unit(device: NvmlDevice) -> Unit:
    parts = tuple(map(_unit, device.parts))
    return Unit(device.model or MODEL, device.memory, device.id, device.trouble, parts)


def _by_files(root: Path) -> Filed | None:
    found = nodes(root / "dev", "nvidia")
    listed = {_minor(file): _from_file(file) for file in _information(root)}
    if found:
        minors = set(map(number_of, found))
        ordered = [unit for minor, unit in listed.items() if minor in minors]
        return Filed(tuple(ordered if len(ordered) == len(found) else [Unit(MODEL) for _ in found]))
    if board := _jetson(root):
        return Filed((Unit(board, usable_memory(root)),))
    if there(root / "dev/dxg"):  # Windows' subsystem for Linux: one node for whatever Windows has
        return Filed((Unit("NVIDIA GPU of Windows"),), certain=False)
    return Filed(tuple(listed.values()), nodes=False) if listed else None


def _without_driver(root: Path) -> Inventory:
    found = pci_devices(root, VENDOR)
    if not found:
        return Inventory(())
    driver = next((device.driver for device in found if device.driver), "")
    why = f"its kernel driver is {driver}" if driver and driver != "nvidia" else "this process has no nodes of it"
    return Inventory((), f"an NVIDIA device is on the PCI bus, and {why}: install NVIDIA's driver; {GPUS}")


def _information(root: Path) -> list[Path]:
    """The driver's files, by PCI address."""
    return sorted((root / "proc/driver/nvidia/gpus").glob("*/information"))


def _fields(file: Path) -> dict[str, str]:
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    return {key.strip(): value.strip() for key, _, value in (one.partition(":") for one in text.splitlines())}


def _minor(file: Path) -> int | str:
    """The number of the device's node; where the file does not say, something that is none."""
    minor = _fields(file).get("Device Minor", "")
    return int(minor) if minor.isascii() and minor.isdecimal() else file.parent.name


def _from_file(file: Path) -> Unit:
    result = _fields(file)
    uuid = result.get("GPU UUID", "")
    return Unit(result.get("Model") or MODEL, id=uuid if uuid.startswith("GPU-") and "?" not in uuid else None)


def _jetson(root: Path) -> str:
    """The name of a board whose GPU is on the processor's chip; empty for any other machine."""
    dev = root / "dev"
    if not any(there(dev / name) for name in ("nvhost-gpu", "nvhost-ctrl-gpu", "nvgpu")):
        return ""
    return line(root / "proc/device-tree/model").rstrip("\0") or "NVIDIA Jetson"
