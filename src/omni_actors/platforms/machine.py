"""What files say of the machine and of its packages: PCI devices, device nodes, the build of an installed torch.

Nothing here imports a vendor's package or opens a device. ``root`` stands for ``/``.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path

COMPUTING = ("0x03", "0x12")
"""PCI classes of displays and of processing accelerators, by their first byte."""

_NUMBER = re.compile(r"(\d+)$", re.ASCII)

_ASSIGNED = re.compile(r"^(\w+)(?:\s*:[^=]*)?\s*=\s*(.+)$")


@dataclass(frozen=True, slots=True)
class PciDevice:
    """``address`` as ``0000:3b:00.0``; ``device`` is its id as ``0x20b5``; ``driver`` the kernel's, empty if none."""

    address: str
    device: str
    driver: str


@dataclass(frozen=True, slots=True)
class TorchBuild:
    """What an installed torch was built for: versions of CUDA, HIP and XPU; ``known`` is false when it does not say."""

    version: str
    cuda: str | None = None
    hip: str | None = None
    xpu: str | None = None
    known: bool = True

    @property
    def kind(self) -> str:
        """For whom it is, as a person says it."""
        if self.cuda:
            return f"CUDA {self.cuda}"
        if self.hip:
            return f"ROCm {self.hip}"
        return "Intel GPUs" if self.xpu else "CPUs only"


def there(path: Path) -> bool:
    """Whether this process can see it: what is in a folder that it may not enter is not there for it."""
    return os.path.exists(path)


def line(path: Path) -> str:
    """The first line of a small file, stripped; empty where it cannot be read."""
    try:
        with path.open(errors="replace") as file:
            return file.readline(4096).strip()
    except OSError:
        return ""


def number(text: str) -> int | None:
    """A number as files have them, ``12`` or ``0xc``; ``None`` for what is none."""
    try:
        return int(text, 0)
    except ValueError:
        return None


def nodes(folder: Path, prefix: str) -> list[Path]:
    """Entries of ``folder`` called ``prefix`` and a number, in the order of their numbers."""
    try:
        found = [it for it in folder.iterdir() if it.name.startswith(prefix) and _is_number(it.name[len(prefix) :])]
    except OSError:
        return []
    return sorted(found, key=lambda it: int(it.name[len(prefix) :]))


def number_of(node: Path) -> int:
    """The number at the end of a node's name."""
    match = _NUMBER.search(node.name)
    return int(match[1]) if match else -1


def pci_devices(root: Path, vendor: str) -> list[PciDevice]:
    """Displays and accelerators of a vendor (``0x10de``) on the PCI bus, by address."""
    return list(_pci_devices(root, vendor))


def _pci_devices(root: Path, vendor: str) -> Iterator[PciDevice]:
    folder = root / "sys/bus/pci/devices"
    try:
        addresses = sorted(os.listdir(folder))
    except OSError:
        return
    for address in addresses:
        it = folder / address
        if line(it / "vendor") == vendor and line(it / "class").startswith(COMPUTING):
            driver = it / "driver"
            yield PciDevice(address, line(it / "device"), driver.resolve().name if there(driver) else "")


def installed(module: str) -> bool:
    """Whether a top-level module could be imported, without importing it."""
    return _spec(module) is not None


def torch_build() -> TorchBuild | None:
    """What the installed torch is, by its own file of versions; ``None`` if there is none."""
    spec = _spec("torch")
    if spec is None:
        return None
    said: dict[str, str | None] = {}
    if spec.origin:
        try:
            text = Path(spec.origin).with_name("version.py").read_text(errors="replace")
        except OSError:
            text = ""
        for match in filter(None, map(_ASSIGNED.match, text.splitlines())):
            try:
                value = ast.literal_eval(match[2])
            except (ValueError, SyntaxError):
                continue
            if value is None or isinstance(value, str):
                said[match[1]] = value
    version = said.get("__version__") or "of unknown version"
    return TorchBuild(version, said.get("cuda"), said.get("hip"), said.get("xpu"), known="__version__" in said)


def _spec(module: str) -> ModuleSpec | None:
    """By files first: a hook that watches imports need not see that somebody only looks."""
    try:
        return PathFinder.find_spec(module) or find_spec(module)
    except (ImportError, ValueError):
        return None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 6
