"""Moore Threads' GPUs for the serving process.

GPUs are found by their device nodes; then the management library is asked through ``pymtml`` (with NVML's interface) if
installed, in a process of its own. ``MUSA_VISIBLE_DEVICES`` selects among the GPUs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from omni_actors.platforms.accelerator import Accelerator, Inventory, Unit, VisibleDevice
from omni_actors.platforms.cuda import nvml
from omni_actors.platforms.cuda.platform import NvmlResult
from omni_actors.platforms.machine import installed, nodes, pci_devices, torch_build
from omni_actors.platforms.visibility import by_id, choose
from omni_actors.protocol.options import Option

VISIBLE = "MUSA_VISIBLE_DEVICES"
VENDOR = "0x1ed5"
LIBRARY = "libmusa.so"
MODEL = "Moore Threads GPU"

DEVICES = "give the container its devices (--runtime mthreads, MTHREADS_VISIBLE_DEVICES=all)"


class MusaPlatform(Accelerator):
    contract = 1
    name = "musa"
    runtime = "omni_actors.platforms.musa.runtime:MusaRuntime"
    maker = "Moore Threads"
    device_type = "musa"
    collectives = "mccl"
    visibility = (VISIBLE,)
    distributions: ClassVar[Mapping[str, str]] = {"torch": "musa", "torch_musa": "musa"}
    default_dtype = "bfloat16"
    dtypes = ("bfloat16", "float16", "float32")
    options: ClassVar[Mapping[str, Option]] = {"graphs": Option(False, "Record steps as MUSA graphs and replay them.")}

    def survey(self) -> Inventory:
        dev = self.root / "dev"
        found = nodes(dev, "mtgpu.") or nodes(dev, "mtgpu")  # by the driver's version
        if not found:
            why = f"a {MODEL} is on the PCI bus, and this process has no nodes of it: install the driver; {DEVICES}"
            return Inventory((), why if pci_devices(self.root, VENDOR) else "")
        units = tuple(Unit(MODEL) for _ in found)
        for node in found:
            if not os.access(node, os.R_OK | os.W_OK):
                return Inventory(units, f"this process may not use {node}: join the groups render and video")
        result = self.consult(Path(nvml.__file__), {"module": "pymtml", "library": LIBRARY}, NvmlResult)
        return self.unanswered("pymtml", units) if result is None else _inventory(units, result)

    def visible(self, inventory: Inventory) -> tuple[Sequence[VisibleDevice], str]:
        units = inventory.units
        if (setting := os.environ.get(VISIBLE)) is None:
            return [VisibleDevice(unit, self.alone(index)) for index, unit in enumerate(units)], ""
        ids = by_id(units, inventory.complete)
        chosen, why = choose(units, VISIBLE, setting, lambda entry: ids(entry) if len(entry) > 7 else None)
        return [VisibleDevice(unit, {VISIBLE: entry}) for entry, unit in chosen], why

    def alone(self, index: int) -> Mapping[str, str]:
        return {VISIBLE: str(index)}

    def software(self) -> str:
        build = torch_build()
        if build is None or not installed("torch_musa"):
            missing = "torch" if build is None else "torch_musa"
            return f"{missing} is not installed: install the wheels that Moore Threads publishes with its MUSA SDK"
        return ""


def _inventory(units: tuple[Unit, ...], result: NvmlResult) -> Inventory:
    if result.driver:
        return Inventory(units, f"{LIBRARY} cannot be loaded ({result.driver}): install the MUSA SDK; {DEVICES}")
    if result.trouble or not result.devices:
        return Inventory(units, note=f"without pymtml: {result.trouble or 'it knows no device'}")
    differs = len(result.devices) != len(units)
    note = f"pymtml counts {len(result.devices)} devices, there are nodes of {len(units)}" if differs else ""
    told = tuple(Unit(it.model or MODEL, it.memory, it.id, it.trouble) for it in result.devices)
    return Inventory(told, note=note, complete=True)
