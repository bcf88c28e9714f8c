"""Machines that are not here: files, device nodes and vendors' libraries, as each of them has them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from omni_actors.platforms.accelerator import Accelerator, Inventory, Unit

NO_DEVICES = (
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "ASCEND_RT_VISIBLE_DEVICES",
    "ASCEND_HOME_PATH",
    "ASCEND_TOOLKIT_HOME",
    "ZE_AFFINITY_MASK",
    "ZE_FLAT_DEVICE_HIERARCHY",
    "ONEAPI_DEVICE_SELECTOR",
    "MUSA_VISIBLE_DEVICES",
    "OMNI_ACTORS_PLATFORM",
)
"""Variables that would decide instead of the machine."""


def write(root: Path, name: str, text: str = "") -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def pci(root: Path, address: str, vendor: str, device: str, kind: str = "0x030200", driver: str = "") -> Path:
    """A device on the bus; its folder."""
    folder = root / "sys/bus/pci/devices" / address
    write(folder, "vendor", f"{vendor}\n")
    write(folder, "device", f"{device}\n")
    write(folder, "class", f"{kind}\n")
    if driver:
        module = root / "sys/bus/pci/drivers" / driver
        module.mkdir(parents=True, exist_ok=True)
        (folder / "driver").symlink_to(module)
    return folder


def nvidia(root: Path, nodes: Sequence[int] = (0,), listed: Sequence[int] = (0,)) -> Path:
    """Device nodes by number, and what the driver's files list."""
    (root / "dev").mkdir(parents=True, exist_ok=True)
    for name in ("nvidiactl", "nvidia-uvm", *(f"nvidia{number}" for number in nodes)) if nodes else ():
        write(root, f"dev/{name}")
    for number in listed:
        said = f"Model: \t\t NVIDIA L{number}\nGPU UUID: \t GPU-{number}{number}\nDevice Minor: \t {number}\n"
        write(root, f"proc/driver/nvidia/gpus/0000:0{number}:00.0/information", said)
    return root


def amd(root: Path, count: int = 1, nodes: bool = True) -> Path:
    """A processor and ``count`` MI300X in the kernel's topology."""
    folder = "sys/class/kfd/kfd/topology/nodes"
    write(root, f"{folder}/0/properties", "cpu_cores_count 64\nsimd_count 0\n")
    for index in range(count):
        minor = 128 + index
        said = {
            "simd_count": 1216,
            "gfx_target_version": 90402,
            "drm_render_minor": minor,
            "unique_id": 0xABC0 + index,
            "domain": 0,
            "location_id": (index + 1) << 8,
        }
        write(root, f"{folder}/{index + 1}/properties", "".join(f"{key} {value}\n" for key, value in said.items()))
        write(root, f"sys/class/drm/renderD{minor}/device/mem_info_vram_total", f"{192 << 30}\n")
        if nodes:
            write(root, f"dev/dri/renderD{minor}")
    if nodes:
        write(root, "dev/kfd")
    return root


def ascend(root: Path, count: int = 1) -> Path:
    for index in range(count):
        write(root, f"dev/davinci{index}")
        pci(root, f"0000:c{index}:00.0", "0x19e5", "0xd802", "0x120000", "devdrv_device_driver")
    write(root, "dev/davinci_manager")
    return root


def intel(root: Path, count: int = 1, on_chip: bool = False, tiles: int = 1) -> Path:
    """Arc B580s (or others, of several tiles), and perhaps the GPU of the processor, whose node comes first."""
    addresses = [*(["0000:00:02.0"] if on_chip else []), *(f"0000:{index + 3:02x}:00.0" for index in range(count))]
    for index, address in enumerate(addresses):
        discrete = address != "0000:00:02.0"
        folder = pci(
            root, address, "0x8086", "0xe20b" if discrete else "0xa780", "0x030000", "xe" if discrete else "i915"
        )
        for tile in range(tiles if discrete else 0):
            write(folder, f"tile{tile}/physical_vram_size_bytes", f"{12 << 30:#x}\n")
        render = root / f"sys/class/drm/renderD{140 + index}"
        render.mkdir(parents=True)
        (render / "device").symlink_to(folder)
        write(root, f"dev/dri/{render.name}")
    return root


def moore(root: Path, count: int = 1) -> Path:
    for index in range(count):
        write(root, f"dev/mtgpu.{index}")
    return root


def jetson(root: Path) -> Path:
    write(root, "dev/nvhost-gpu")
    write(root, "proc/device-tree/model", "NVIDIA Jetson AGX Orin Developer Kit\0")
    write(root, "proc/meminfo", f"MemTotal: {64 << 20} kB\n")
    return root


def windows(root: Path) -> Path:
    """Windows' subsystem for Linux: one node, whoever made the device."""
    write(root, "dev/dxg")
    return root


def use(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    """Every platform looks there, and no variable hides a device."""
    root.mkdir(parents=True, exist_ok=True)
    monkeypatch.setattr(Accelerator, "root", root)
    for name in NO_DEVICES:
        monkeypatch.delenv(name, raising=False)


def has(monkeypatch: pytest.MonkeyPatch, platform: type[Accelerator], *units: Unit) -> None:
    """The machine has exactly these, and the installed packages can use them."""
    monkeypatch.setattr(platform, "survey", lambda self: Inventory(units))
    monkeypatch.setattr(platform, "software", lambda self: "")


def module(monkeypatch: pytest.MonkeyPatch, folder: Path, name: str, text: str) -> None:
    """An importable module of that name, found before any other."""
    write(folder, f"{name}.py", text)
    monkeypatch.syspath_prepend(folder)


def torch(monkeypatch: pytest.MonkeyPatch, folder: Path, **built_for: str) -> None:
    """An installed torch that must not be imported: ``cuda="12.8"``, ``hip="6.4"``, ``xpu="20250302"``, or for CPUs."""
    said = {"__version__": "2.11.0", "debug": False, "cuda": None, "hip": None, "xpu": None, **built_for}
    lines = (f"{key}: Optional[str] = {value!r}\n" for key, value in said.items())
    write(folder, "torch/version.py", f"from typing import Optional\n\n{''.join(lines)}")
    write(folder, "torch/__init__.py", "raise RuntimeError('torch is imported where it must not be')\n")
    monkeypatch.syspath_prepend(folder)


def driver(monkeypatch: pytest.MonkeyPatch, folder: Path, *libraries: str) -> None:
    """Shared libraries that can be loaded under these names."""
    import _ctypes

    folder.mkdir(parents=True, exist_ok=True)
    for library in libraries:
        (folder / library).symlink_to(_ctypes.__file__)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(folder))
