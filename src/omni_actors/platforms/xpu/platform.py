"""Intel's discrete GPUs for the serving process.

GPUs are found by the kernel's render nodes, in the order of Level Zero: discrete devices first, each by PCI address.
``ZE_AFFINITY_MASK`` selects first, in the driver's library; then ``ONEAPI_DEVICE_SELECTOR``, with numbers among the
devices left by the mask. A GPU on the processor's chip is not chosen.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from omni_actors.platforms.accelerator import Accelerator, Inventory, Unit, VisibleDevice, lacks_torch
from omni_actors.platforms.machine import line, nodes, number, pci_devices, there
from omni_actors.platforms.platform import VLLM_ENGINE, OmniPlatform
from omni_actors.platforms.xpu.selection import Mask, Selector, SelectorError
from omni_actors.protocol.options import Option

MASK = "ZE_AFFINITY_MASK"
SELECTOR = "ONEAPI_DEVICE_SELECTOR"
HIERARCHY = "ZE_FLAT_DEVICE_HIERARCHY"
VENDOR = "0x8086"
DRIVERS = ("i915", "xe")
ON_CHIP = "0000:00:02.0"
"""PCI address of the GPU on Intel's processors."""


class XpuPlatform(Accelerator):
    contract = 1
    name = "xpu"
    runtime = "omni_actors.platforms.xpu.runtime:XpuRuntime"
    maker = "Intel"
    device_type = "xpu"
    collectives = "xccl"
    visibility = (MASK, SELECTOR)
    distributions: ClassVar[Mapping[str, str]] = {"torch": "xpu"}
    engines: ClassVar[Mapping[str, str]] = {
        "autoregressive": "omni_actors.platforms.xpu.engines:XpuAutoregressiveEngine",
        "generation": "omni_actors.platforms.xpu.engines:XpuGenerationEngine",
        "diffusion": OmniPlatform.engines["diffusion"],
        "vllm": VLLM_ENGINE,
    }
    vllm_builds = (r"xpu.*",)
    default_dtype = "bfloat16"
    dtypes = ("bfloat16", "float16", "float32")
    options: ClassVar[Mapping[str, Option]] = {
        "graphs": Option(False, "Record steps as XPU graphs and replay them."),
        "allocation_mib": Option(
            None, "Largest single allocation of the KV cache in MiB; null for no limit.", type=int
        ),
    }

    def survey(self) -> Inventory:
        cards = _cards(self.root)
        discrete = [card for card in cards if card.address != ON_CHIP]
        if not discrete:
            if any(it.address != ON_CHIP and it.driver not in DRIVERS for it in pci_devices(self.root, VENDOR)):
                return Inventory((), "an Intel GPU is on the PCI bus, and no kernel driver has it: load i915 or xe")
            note = "no Intel device on this machine but the one on the processor's chip, which is not used"
            return Inventory((), note=note if cards else "")
        units = tuple(unit for card in discrete for unit in _tiles(card))
        for card in discrete:
            node = self.root / "dev/dri" / card.node
            if not there(node):
                return Inventory(units, f"{node} is missing: give the container its devices (--device /dev/dri)")
            if not os.access(node, os.R_OK | os.W_OK):
                return Inventory(units, f"this process may not use {node}: join the group render")
        return Inventory(units)

    def visible(self, inventory: Inventory) -> tuple[Sequence[VisibleDevice], str]:
        units = inventory.units
        setting = os.environ.get(MASK, "")
        mask = Mask.read(setting)
        left = [index for index in range(len(units)) if mask.shows(index)]
        if not left:
            return (), f"{MASK}={setting!r} shows none of {len(units)} devices"
        result = os.environ.get(SELECTOR, "")
        try:
            selector = Selector.read(result)
        except SelectorError as error:
            return (), f"{SELECTOR}={result!r} cannot be read: {error}"
        seen = [
            VisibleDevice(units[index], _only(mask.entries(index) or selector.entries(place, index)))
            for place, index in enumerate(left)
            if selector.shows(place)
        ]
        return seen, "" if seen else f"{SELECTOR}={result!r} shows none of {len(left)} devices"

    def alone(self, index: int) -> Mapping[str, str]:
        return _only(str(index))

    def software(self) -> str:
        return lacks_torch("xpu", "Intel GPUs", "xpu")


def _only(entries: str) -> Mapping[str, str]:
    """Remove the selector: the mask leaves the worker's device alone, and a selector's numbers would mean another
    device."""
    return {MASK: entries, SELECTOR: "level_zero:gpu"}


@dataclass(frozen=True, slots=True)
class Card:
    """A device with a kernel driver: PCI address, name of the node below ``/dev/dri``, and folder."""

    address: str
    node: str
    folder: Path


def _cards(root: Path) -> list[Card]:
    found = []
    for node in nodes(root / "sys/class/drm", "renderD"):
        folder = node / "device"
        if line(folder / "vendor") == VENDOR and (folder / "driver").resolve().name in DRIVERS:
            found.append(Card(folder.resolve().name, node.name, folder))
    return sorted(found, key=lambda card: card.address)


def _tiles(card: Card) -> list[Unit]:
    """Return the units of a device. A device of several tiles counts as a device per tile, unless the hierarchy says
    otherwise."""
    drm = next(iter(sorted((card.folder / "drm").glob("card*"))), card.folder)
    count = len(nodes(card.folder, "tile")) or len(nodes(drm / "gt", "gt")) or 1
    sizes = [number(line(card.folder / f"tile{index}" / "physical_vram_size_bytes")) for index in range(count)]
    total = sum(size or 0 for size in sizes) or number(line(drm / "lmem_total_bytes")) or None
    model = f"Intel GPU {line(card.folder / 'device').removeprefix('0x')}"
    if count == 1 or os.environ.get(HIERARCHY, "").upper() == "COMPOSITE":
        return [Unit(model, total, card.address)]
    return [Unit(f"tile of {model}", total // count if total else None, card.address) for _ in range(count)]
