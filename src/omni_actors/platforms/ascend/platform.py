"""Huawei's Ascend NPUs for the serving process.

NPUs are found by their device nodes; then ``npu-smi`` is asked, in a process of its own.
``ASCEND_RT_VISIBLE_DEVICES`` selects among the NPUs.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import msgspec

from omni_actors.platforms.accelerator import Accelerator, Inventory, ProbeResult, Unit, VisibleDevice
from omni_actors.platforms.ascend import smi
from omni_actors.platforms.machine import installed, nodes, pci_devices, there, torch_build
from omni_actors.platforms.platform import OmniPlatform
from omni_actors.platforms.visibility import ORDINAL, hidden
from omni_actors.protocol.options import Option

VISIBLE = "ASCEND_RT_VISIBLE_DEVICES"
VENDOR = "0x19e5"
MODELS = {
    "0xd100": "Ascend 310",
    "0xd500": "Ascend 310P",
    "0xd801": "Ascend 910",
    "0xd802": "Ascend 910B",
    "0xd803": "Ascend 910C",
}
"""Names of models by PCI device id."""

TOOLKITS = tuple(f"usr/local/Ascend/{name}" for name in ("ascend-toolkit", "cann", "nnae", "latest"))
HOMES = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME")
"""Environment variables that CANN's ``set_env.sh`` sets."""

DEVICES = "give the container its devices (--device /dev/davinci0 --device /dev/davinci_manager …)"


class AscendPlatform(Accelerator):
    contract = 1
    name = "ascend"
    runtime = "omni_actors.platforms.ascend.runtime:AscendRuntime"
    maker = "Ascend"
    device_type = "npu"
    collectives = "hccl"
    visibility = (VISIBLE,)
    distributions: ClassVar[Mapping[str, str]] = {"torch": "ascend", "torch-npu": "ascend"}
    engines: ClassVar[Mapping[str, str]] = {
        "autoregressive": "omni_actors.platforms.ascend.engines:AscendAutoregressiveEngine",
        "generation": "omni_actors.platforms.ascend.engines:AscendGenerationEngine",
        "diffusion": OmniPlatform.engines["diffusion"],
    }
    default_dtype = "bfloat16"
    dtypes = ("bfloat16", "float16", "float32")
    options: ClassVar[Mapping[str, Option]] = {
        "nz": Option(False, "Store weights in the NZ format of the matrix units.")
    }

    def survey(self) -> Inventory:
        found = nodes(self.root / "dev", "davinci")
        chips = pci_devices(self.root, VENDOR)
        if not found:
            why = f"an Ascend NPU is on the PCI bus, and this process has no nodes of it: install the driver; {DEVICES}"
            return Inventory((), why if chips else "")
        model = MODELS.get(chips[0].device, "Ascend NPU") if len({chip.device for chip in chips}) == 1 else "Ascend NPU"
        units = tuple(Unit(model) for _ in found)  # numbered anew in a container, whatever their nodes are called
        if not there(self.root / "dev/davinci_manager"):
            return Inventory(units, f"/dev/davinci_manager is missing: {DEVICES}")
        for node in found:
            if not os.access(node, os.R_OK | os.W_OK):
                return Inventory(units, f"this process may not use {node}: join the group HwHiAiUser")
        command = shutil.which("npu-smi")
        if command is None:
            return Inventory(units, note="without npu-smi")
        result = self.consult(Path(smi.__file__), {"command": command}, _SmiResult)
        return self.unanswered("npu-smi", units) if result is None else _inventory(units, result)

    def visible(self, inventory: Inventory) -> tuple[Sequence[VisibleDevice], str]:
        """Apply the rules of CANN: numbers and commas; any other character, a space too, or an unknown device ends the
        list."""
        units = inventory.units
        if (setting := os.environ.get(VISIBLE)) is None:
            return [VisibleDevice(unit, self.alone(index)) for index, unit in enumerate(units)], ""
        seen: dict[int, Unit] = {}
        for entry in setting.split(","):
            number = int(entry) if ORDINAL.fullmatch(entry) else -1
            if not 0 <= number < len(units) or number in seen:
                if not seen:
                    return (), hidden(units, VISIBLE, setting, entry)
                break
            seen[number] = units[number]
        return [VisibleDevice(unit, self.alone(number)) for number, unit in seen.items()], ""

    def alone(self, index: int) -> Mapping[str, str]:
        return {VISIBLE: str(index)}

    def software(self) -> str:
        build = torch_build()
        if build is None or not installed("torch_npu"):
            missing = "torch" if build is None else "torch-npu"
            return f"{missing} is not installed: pip install 'omni-actors[ascend]'"
        if any(os.environ.get(name) for name in HOMES):
            return ""
        for toolkit in TOOLKITS:
            if there(script := self.root / toolkit / "set_env.sh"):
                return f"CANN is not in the environment: source {script}"
        return "CANN is not installed, or not in the environment: install its toolkit and source its set_env.sh"


class _Facts(msgspec.Struct):
    model: str | None = None
    memory: int | None = None
    trouble: str = ""


class _SmiResult(ProbeResult):
    """The answer of :func:`smi.answer`."""

    devices: dict[str, _Facts] = {}


def _inventory(units: tuple[Unit, ...], result: _SmiResult) -> Inventory:
    if result.trouble:
        return Inventory(units, note=f"without npu-smi: {result.trouble}")
    facts = [result.devices.get(str(index), _Facts()) for index in range(len(units))]
    named = (
        replace(unit, model=fact.model or unit.model, memory=fact.memory, trouble=fact.trouble)
        for unit, fact in zip(units, facts, strict=True)
    )
    differs = len(result.devices) != len(units)
    note = f"npu-smi counts {len(result.devices)} devices, there are nodes of {len(units)}" if differs else ""
    return Inventory(tuple(named), note=note)
