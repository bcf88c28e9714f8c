"""The half of a built-in accelerator that the serving process uses, common to all vendors.

A vendor's platform reports the machine's devices (:meth:`Accelerator.survey`: files, device nodes, and the vendor's
management library in a subprocess probe), applies the visibility variables (:meth:`Accelerator.visible`), and reports
whether the installed packages can use a device (:meth:`Accelerator.software`). From these reports :class:`Accelerator`
makes a detection, devices called ``<platform>:<number>``, and the environment of a worker that sees its own device
only.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import msgspec

from omni_actors.moved import moved_names
from omni_actors.platforms.cpu import CpuPlatform
from omni_actors.platforms.machine import torch_build
from omni_actors.platforms.platform import Detection, Device, OmniPlatform, PlatformError
from omni_actors.platforms.quantization import TORCH
from omni_actors.plugins.subprocess_probe import SubprocessProbe, one_line, run_probes

MANAGEMENT_S = 20.0
"""Seconds for an answer of a vendor's management library. If the library stays silent, its driver does not answer."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A device of the machine. ``memory`` is in bytes; ``id`` is the vendor's name; ``trouble`` is as in
    :class:`~omni_actors.platforms.platform.Device`. ``parts`` are slices that are used instead of the whole device."""

    model: str
    memory: int | None = None
    id: str | None = None
    trouble: str = ""
    parts: tuple[Unit, ...] = ()


@dataclass(frozen=True, slots=True)
class Inventory:
    """A vendor's devices on this machine, visible or not, in the order of the vendor's ordinals.

    ``trouble`` says why no device can be used; ``note`` is a remark about usable devices. ``complete`` says that the
    ``id`` and the parts of every device are known.
    """

    units: tuple[Unit, ...]
    trouble: str = ""
    note: str = ""
    complete: bool = False


class ProbeResult(msgspec.Struct):
    """The answer of a management library. ``trouble`` says why the library gave no answer; subclasses have the fields
    of an answer."""

    trouble: str = ""


R = TypeVar("R", bound=ProbeResult)


@dataclass(frozen=True, slots=True)
class VisibleDevice:
    """A device that this process may use, and the variables by which a worker sees that device only."""

    unit: Unit
    environment: Mapping[str, str]


class Accelerator(OmniPlatform):
    """A platform of accelerators. A deployment may be planned for the platform on a machine without any (``--platform
    cuda``, or in a deploy file).

    An instance looks at the machine once, when it is first asked; it reads the environment variables each time.
    """

    maker: ClassVar[str]
    """The maker of the devices, such as ``NVIDIA``."""
    device_type: ClassVar[str]
    """torch's name for devices of this platform."""
    plannable: ClassVar[bool] = True
    quantization: ClassVar[Mapping[str, str]] = TORCH
    root: ClassVar[Path] = Path("/")

    @abstractmethod
    def survey(self) -> Inventory:
        """Return the machine's devices. A missing or broken library raises nothing."""

    @abstractmethod
    def visible(self, inventory: Inventory) -> tuple[Sequence[VisibleDevice], str]:
        """Return the devices that the environment variables leave visible, and if they leave none, the reason."""

    @abstractmethod
    def alone(self, index: int) -> Mapping[str, str]:
        """Return the variables by which a worker sees only the device of an ordinal, for a machine of which nothing is
        known."""

    @abstractmethod
    def software(self) -> str:
        """Return why the installed packages cannot use a device, with the remedy; an empty text if they can."""

    @cached_property
    def inventory(self) -> Inventory:
        return self.survey()

    def detect(self) -> Detection:
        found = self.inventory
        if not found.units and not found.trouble:
            return Detection(False, False, found.note or f"no {self.maker} device on this machine")
        if why := self._unusable(found):
            return Detection(False, True, one_line(why))
        named = described([it.unit for it in self._visible()])
        return Detection(True, True, one_line(f"{named} ({found.note})" if found.note else named))

    def _unusable(self, found: Inventory) -> str:
        if found.trouble:
            return found.trouble
        seen, hidden = self.visible(found)
        if not seen:
            return hidden
        named = described([it.unit for it in seen])
        if all(it.unit.trouble for it in seen):
            return f"{named}: {seen[0].unit.trouble}"
        lacks = self.software()
        return f"{named} is here, but {lacks}" if lacks else ""

    def devices(self) -> tuple[Device, ...]:
        """Return the usable devices of this process. Without any, return the first device, so that a deployment can be
        planned."""
        named = (
            Device(f"{self.name}:{index}", unit.memory, one_line(unit.model), unit.id, one_line(unit.trouble))
            for index, unit in enumerate(it.unit for it in self._visible())
        )
        return tuple(named) or (Device(f"{self.name}:0", None, "not on this machine"),)

    def usual_devices(self, stage: int, threads: int, options: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the first device without a fault."""
        devices = self.devices()
        return (next((device.name for device in devices if not device.trouble), devices[0].name),)

    def cores(self) -> int:
        return CpuPlatform().cores()

    def check_device(self, device: str) -> None:
        """Accept any number where no device is found: ``serve`` checks again before it starts a worker."""
        self._index(device)
        if self._visible():
            super().check_device(device)

    def worker_environment(self, device: str, threads: int, options: Mapping[str, Any]) -> dict[str, str]:
        """Return the CPU's thread counts, and variables by which the worker sees only its device."""
        index = self._index(device)
        seen = self._visible()
        only = seen[index].environment if index < len(seen) else self.alone(index)
        return {**CpuPlatform().worker_environment(device, threads, {}), **only}

    def worker_device(self, device: str) -> str:
        """Return the first device, since a worker sees its own device only."""
        return f"{self.device_type}:0"

    def consult(self, script: Path, argument: Any, kind: type[R]) -> R | None:
        """Ask a management library in a subprocess probe.

        Args:
            script: The file that asks the library.
            argument: The argument of the script.
            kind: The type of the answer.

        Returns:
            The answer. A library that is missing or broken is in the answer's ``trouble``, and files must do. ``None``
            for a library that gives no answer at all: its driver does not answer, and a worker would wait as long.
        """
        answer = run_probes([SubprocessProbe(script, argument)], MANAGEMENT_S)[0]
        if answer.silent:
            return None
        if answer.trouble:
            return kind(trouble=answer.trouble)
        try:
            return msgspec.convert(answer.value, kind)
        except msgspec.ValidationError as error:
            return kind(trouble=f"it answered nonsense ({error})")

    def unanswered(self, library: str, units: tuple[Unit, ...]) -> Inventory:
        """Return the inventory of a driver that does not answer."""
        silence = f"the {self.maker} driver does not answer: {library} has said nothing for {MANAGEMENT_S:g} s"
        return Inventory(units, f"{silence}; see dmesg, reload the driver or restart the machine")

    def _visible(self) -> Sequence[VisibleDevice]:
        units = self.inventory.units
        return self.visible(self.inventory)[0] if units else ()

    def _index(self, device: str) -> int:
        match = re.fullmatch(rf"{re.escape(self.name)}:(0|[1-9][0-9]{{0,3}})", device)
        if match is None:
            names = f"they are called {self.name}:0, {self.name}:1, …"
            raise PlatformError(f"platform '{self.name}' has no device '{device}'; {names}")
        return int(match[1])


def described(units: Sequence[Unit]) -> str:
    """Describe devices by model and count.

    >>> described([Unit("NVIDIA H200"), Unit("NVIDIA H200"), Unit("NVIDIA L4")])
    '2 x NVIDIA H200, NVIDIA L4'
    """
    counts: dict[str, int] = {}
    for unit in units:
        counts[unit.model] = counts.get(unit.model, 0) + 1
    return ", ".join(model if count == 1 else f"{count} x {model}" for model, count in counts.items())


def lacks_torch(attribute: str, wanted: str, extra: str) -> str:
    """Return why the installed torch cannot compute on a vendor's devices, with the remedy; an empty text if it can.

    Args:
        attribute: The attribute of :class:`~omni_actors.platforms.machine.TorchBuild` that is set in a build for the
            vendor.
        wanted: The vendor's software in the remedy, such as ``CUDA``.
        extra: The extra of this package that installs torch.
    """
    build = torch_build()
    if build is None:
        return f"torch is not installed: pip install 'omni-actors[{extra}]'"
    if not build.known or getattr(build, attribute):
        return ""
    return f"the installed torch {build.version} is built for {build.kind}: install its build for {wanted}"


__getattr__ = moved_names(__name__, {"Said": f"{__name__}:ProbeResult", "Seen": f"{__name__}:VisibleDevice"})
