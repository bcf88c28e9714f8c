"""AMD's devices for the serving process.

Devices are found by the kernel's topology of compute nodes and by device nodes; then amdsmi is asked for names, in a
process of its own. ``ROCR_VISIBLE_DEVICES`` selects first, in the driver's library; then ``HIP_VISIBLE_DEVICES`` (or
``CUDA_VISIBLE_DEVICES`` if the former is not set), with ordinals among the devices left by the first variable.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import msgspec

from omni_actors.platforms.accelerator import Accelerator, Inventory, ProbeResult, Unit, VisibleDevice, lacks_torch
from omni_actors.platforms.machine import line, nodes, number, pci_devices, there
from omni_actors.platforms.platform import VLLM_ENGINE
from omni_actors.platforms.rocm import smi
from omni_actors.platforms.visibility import by_id, choose
from omni_actors.protocol.options import Option

DRIVER_VISIBLE = "ROCR_VISIBLE_DEVICES"
VISIBLE = "HIP_VISIBLE_DEVICES"
FALLBACK = "CUDA_VISIBLE_DEVICES"
VENDOR = "0x1002"

DEVICES = "give the container its devices (--device /dev/kfd --device /dev/dri)"


class RocmPlatform(Accelerator):
    contract = 1
    name = "rocm"
    runtime = "omni_actors.platforms.rocm.runtime:RocmRuntime"
    maker = "AMD"
    device_type = "cuda"
    collectives = "nccl"  # torch's name for RCCL
    visibility = (DRIVER_VISIBLE, VISIBLE, FALLBACK)
    distributions: ClassVar[Mapping[str, str]] = {"torch": "rocm"}
    engines: ClassVar[Mapping[str, str]] = {**Accelerator.engines, "vllm": VLLM_ENGINE}
    vllm_builds = (r"rocm.*",)
    default_dtype = "bfloat16"
    dtypes = ("bfloat16", "float16", "float32")
    options: ClassVar[Mapping[str, Option]] = {"graphs": Option(False, "Record steps as HIP graphs and replay them.")}

    def survey(self) -> Inventory:
        cards = _topology(self.root)
        if cards is None:
            return _without_driver(self.root)
        if not cards:
            return Inventory(())
        reachable = [card for card in cards if there(self.root / "dev/dri" / card.node)]
        units = tuple(card.unit for card in reachable)
        if not there(kfd := self.root / "dev/kfd") or not reachable:
            return Inventory(tuple(card.unit for card in cards), f"this process has no nodes of the devices: {DEVICES}")
        for node in (kfd, *(self.root / "dev/dri" / card.node for card in reachable)):
            if not os.access(node, os.R_OK | os.W_OK):
                who = "join the groups render and video"
                return Inventory(units, f"this process may not use {node}: {who}")
        result = self.consult(Path(smi.__file__), None, _SmiResult)
        return self.unanswered("amdsmi", units) if result is None else _named(reachable, result)

    def visible(self, inventory: Inventory) -> tuple[Sequence[VisibleDevice], str]:
        seen = list(inventory.units)
        if (setting := os.environ.get(DRIVER_VISIBLE)) is not None:
            chosen, why = choose(seen, DRIVER_VISIBLE, setting, by_id(seen, inventory.complete))
            if not chosen:
                return (), why
            seen = [unit for _, unit in chosen]
        variable = VISIBLE if VISIBLE in os.environ else FALLBACK
        if (setting := os.environ.get(variable)) is None:
            return [VisibleDevice(unit, self.alone(index)) for index, unit in enumerate(seen)], ""
        chosen, why = choose(seen, variable, setting, by_id(seen, inventory.complete))
        return [VisibleDevice(unit, _only(entry)) for entry, unit in chosen], why

    def alone(self, index: int) -> Mapping[str, str]:
        return _only(str(index))

    def software(self) -> str:
        return lacks_torch("hip", "ROCm", "rocm")


def _only(entry: str) -> Mapping[str, str]:
    """Both, with the same meaning: libraries read one or the other."""
    return {VISIBLE: entry, FALLBACK: entry}


@dataclass(frozen=True, slots=True)
class Card:
    """A compute node of the kernel: PCI address and name of the node below ``/dev/dri``."""

    unit: Unit
    address: str
    node: str


class _Facts(msgspec.Struct):
    model: str | None = None
    memory: int | None = None


class _SmiResult(ProbeResult):
    """The answer of :func:`smi.answer`."""

    devices: dict[str, _Facts] = {}


def _topology(root: Path) -> list[Card] | None:
    """Return the GPUs of the kernel's driver, in the driver's order; ``None`` without the driver."""
    folder = root / "sys/class/kfd/kfd/topology/nodes"
    if not there(folder):
        return None
    found = [_card(root, node) for node in nodes(folder, "")]
    return [card for card in found if card is not None]


def _card(root: Path, node: Path) -> Card | None:
    try:
        pairs = [one.split() for one in (node / "properties").read_text().splitlines()]
    except (OSError, UnicodeDecodeError):
        return None
    result = {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isascii() and pair[1].isdecimal()}
    if not result.get("simd_count"):
        return None  # a processor
    render = f"renderD{result.get('drm_render_minor', 0)}"
    device = root / "sys/class/drm" / render / "device"
    unique = result.get("unique_id", 0)
    unit = Unit(
        line(device / "product_name") or f"AMD GPU {_architecture(result.get('gfx_target_version', 0))}".strip(),
        number(line(device / "mem_info_vram_total")),
        f"GPU-{unique:016x}" if unique else None,
    )
    location = result.get("location_id", 0)
    slot = f"{location >> 8 & 0xFF:02x}:{location >> 3 & 0x1F:02x}.{location & 7}"
    return Card(unit, f"{result.get('domain', 0):04x}:{slot}", render)


def _architecture(version: int) -> str:
    """``gfx942`` for 90402: major, minor and stepping, the last two in hexadecimal."""
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}" if version else ""


def _named(cards: list[Card], result: _SmiResult) -> Inventory:
    units = tuple(card.unit for card in cards)
    complete = all(unit.id for unit in units)
    if result.trouble:
        return Inventory(units, note=f"without amdsmi: {result.trouble}", complete=complete)
    note = ""
    if len(result.devices) != len(units):
        note = f"amdsmi counts {len(result.devices)} devices, the kernel lets this process use {len(units)}"
    facts = [result.devices.get(card.address, _Facts()) for card in cards]
    named = (
        replace(unit, model=fact.model or unit.model, memory=fact.memory if unit.memory is None else unit.memory)
        for unit, fact in zip(units, facts, strict=True)
    )
    return Inventory(tuple(named), note=note, complete=complete)


def _without_driver(root: Path) -> Inventory:
    found = pci_devices(root, VENDOR)
    if there(root / "dev/dxg") and any((root / "opt/rocm/lib").glob("librocdxg.so*")):
        return Inventory((Unit("AMD GPU of Windows"),))
    if not found:
        return Inventory(())
    driver = next((device.driver for device in found if device.driver), "")
    why = f"its kernel driver is {driver}, without compute" if driver else "no kernel driver has it"
    return Inventory((), f"an AMD device is on the PCI bus, and {why}: load amdgpu with KFD; {DEVICES}")
