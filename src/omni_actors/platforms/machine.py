"""Facts about the machine and its packages from files: PCI devices, device nodes, the build of the installed torch.

No function imports a vendor's package or opens a device. ``root`` stands for ``/``.
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
"""First bytes of the PCI classes of displays and of processing accelerators."""

_NUMBER = re.compile(r"(\d+)$", re.ASCII)

_ASSIGNED = re.compile(r"^(\w+)(?:\s*:[^=]*)?\s*=\s*(.+)$")


@dataclass(frozen=True, slots=True)
class PciDevice:
    """A device on the PCI bus. ``address`` is as in ``0000:3b:00.0``, ``device`` is the device id as in ``0x20b5``;
    ``driver`` is the name of the kernel's driver, empty without one."""

    address: str
    device: str
    driver: str


@dataclass(frozen=True, slots=True)
class TorchBuild:
    """The build of an installed torch: its versions of CUDA, HIP and XPU. ``known`` is false for a torch that does not
    state them."""

    version: str
    cuda: str | None = None
    hip: str | None = None
    xpu: str | None = None
    known: bool = True

    @property
    def kind(self) -> str:
        """The hardware of the build, in words for an operator."""
        if self.cuda:
            return f"CUDA {self.cuda}"
        if self.hip:
            return f"ROCm {self.hip}"
        return "Intel GPUs" if self.xpu else "CPUs only"


def there(path: Path) -> bool:
    """Return whether this process can see a path. The content of a folder without permission to enter counts as
    absent."""
    return os.path.exists(path)


def line(path: Path) -> str:
    """Return the first line of a small file, stripped; an empty text for an unreadable file."""
    try:
        with path.open(errors="replace") as file:
            return file.readline(4096).strip()
    except OSError:
        return ""


def number(text: str) -> int | None:
    """Return the number in a text, or ``None`` for another text.

    >>> number("0xc"), number("12"), number("none")
    (12, 12, None)
    """
    try:
        return int(text, 0)
    except ValueError:
        return None


def nodes(folder: Path, prefix: str) -> list[Path]:
    """Return the entries of a folder that are called ``prefix`` and a number, in the order of the numbers."""
    try:
        found = [it for it in folder.iterdir() if it.name.startswith(prefix) and _is_number(it.name[len(prefix) :])]
    except OSError:
        return []
    return sorted(found, key=lambda it: int(it.name[len(prefix) :]))


def number_of(node: Path) -> int:
    """Return the number at the end of a node's name, -1 without one.

    >>> number_of(Path("/dev/nvidia3"))
    3
    """
    match = _NUMBER.search(node.name)
    return int(match[1]) if match else -1


def pci_devices(root: Path, vendor: str) -> list[PciDevice]:
    """Return a vendor's displays and accelerators on the PCI bus, by address. ``vendor`` is as in ``0x10de``."""
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
    """Return whether a top-level module could be imported, without importing it."""
    return _spec(module) is not None


def torch_build() -> TorchBuild | None:
    """Return the build of the installed torch, as its file of versions states it; ``None`` without torch."""
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
    """Find a module's spec, first by files: import hooks that watch for imports need not notice a look."""
    try:
        return PathFinder.find_spec(module) or find_spec(module)
    except (ImportError, ValueError):
        return None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 6
