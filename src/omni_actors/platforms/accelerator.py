"""The serving process' half of a builtin accelerator: what all vendors' have in common.

A vendor's platform says what the machine has (:meth:`Accelerator.survey`, by files and device nodes, and by the
vendor's management library in a process of its own), what the visibility variables leave of it
(:meth:`Accelerator.visible`), and whether the installed packages can use it (:meth:`Accelerator.software`). Here that
becomes a detection, devices called ``<platform>:<number>``, and a worker's environment in which its device is the only
one.
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
"""What a vendor's management library gets to answer. One that does not has a driver that does not."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A device of the machine. ``memory`` in bytes; ``id`` is the vendor's; ``trouble`` as of
    :class:`~omni_actors.platforms.platform.Device`. ``parts`` are slices that are used instead of the whole."""

    model: str
    memory: int | None = None
    id: str | None = None
    trouble: str = ""
    parts: tuple[Unit, ...] = ()


@dataclass(frozen=True, slots=True)
class Inventory:
    """What a machine has of a vendor, whatever is visible, in the order of the vendor's ordinals.

    ``trouble`` is why none of it can be used, ``note`` what is worth telling though it can. ``complete`` says that
    every device's ``id`` and parts are known.
    """

    units: tuple[Unit, ...]
    trouble: str = ""
    note: str = ""
    complete: bool = False


class ProbeResult(msgspec.Struct):
    """What a management library says: why it says nothing, here; what it says, in subclasses."""

    trouble: str = ""


R = TypeVar("R", bound=ProbeResult)


@dataclass(frozen=True, slots=True)
class VisibleDevice:
    """A device that this process may use, and the variables by which a worker sees nothing else."""

    unit: Unit
    environment: Mapping[str, str]


class Accelerator(OmniPlatform):
    """A deployment for it may be planned (``--platform cuda``, or in a deploy file) on a machine without any.

    An instance looks at the machine once, when it is first asked; the variables it reads each time.
    """

    maker: ClassVar[str]
    """Whose devices they are: ``NVIDIA``."""
    device_type: ClassVar[str]
    """What torch calls such a device."""
    plannable: ClassVar[bool] = True
    quantization: ClassVar[Mapping[str, str]] = TORCH
    root: ClassVar[Path] = Path("/")

    @abstractmethod
    def survey(self) -> Inventory:
        """What the machine has. Raises nothing because of a missing or broken library."""

    @abstractmethod
    def visible(self, inventory: Inventory) -> tuple[Sequence[VisibleDevice], str]:
        """What the environment's variables leave of an inventory that has devices, and if it is nothing: why."""

    @abstractmethod
    def alone(self, index: int) -> Mapping[str, str]:
        """The variables of a worker that sees only the device of that ordinal, on a machine about which nothing is
        known."""

    @abstractmethod
    def software(self) -> str:
        """Why the installed packages cannot use such a device, with the remedy; empty if they can."""

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
        """Those that this process may use. Where none is found, the first, so that a deployment can be planned."""
        named = (
            Device(f"{self.name}:{index}", unit.memory, one_line(unit.model), unit.id, one_line(unit.trouble))
            for index, unit in enumerate(it.unit for it in self._visible())
        )
        return tuple(named) or (Device(f"{self.name}:0", None, "not on this machine"),)

    def usual_devices(self, stage: int, threads: int, options: Mapping[str, Any]) -> tuple[str, ...]:
        """The first that nothing is wrong with."""
        devices = self.devices()
        return (next((device.name for device in devices if not device.trouble), devices[0].name),)

    def cores(self) -> int:
        return CpuPlatform().cores()

    def check_device(self, device: str) -> None:
        """Any number where no device is found: ``serve`` asks again before it starts a worker there."""
        self._index(device)
        if self._visible():
            super().check_device(device)

    def worker_environment(self, device: str, threads: int, options: Mapping[str, Any]) -> dict[str, str]:
        """The CPU's thread counts, and a world in which ``device`` is the only one."""
        index = self._index(device)
        seen = self._visible()
        only = seen[index].environment if index < len(seen) else self.alone(index)
        return {**CpuPlatform().worker_environment(device, threads, {}), **only}

    def worker_device(self, device: str) -> str:
        """The first one: the worker sees its own only."""
        return f"{self.device_type}:0"

    def consult(self, script: Path, argument: Any, kind: type[R]) -> R | None:
        """What a management library says, asked in a process of its own; ``None`` if it says nothing at all: then the
        driver does not answer, and a worker would wait as long. A library that is missing or broken in any other way is
        in ``trouble``, and files have to do."""
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
        """The devices of a driver that does not answer."""
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
    """``2 x NVIDIA H200, NVIDIA L4``."""
    counts: dict[str, int] = {}
    for unit in units:
        counts[unit.model] = counts.get(unit.model, 0) + 1
    return ", ".join(model if count == 1 else f"{count} x {model}" for model, count in counts.items())


def lacks_torch(attribute: str, wanted: str, extra: str) -> str:
    """Why the installed torch cannot compute on a device of a vendor, with the remedy; empty if it can. ``attribute``
    is the one of :class:`~omni_actors.platforms.machine.TorchBuild` that says so."""
    build = torch_build()
    if build is None:
        return f"torch is not installed: pip install 'omni-actors[{extra}]'"
    if not build.known or getattr(build, attribute):
        return ""
    return f"the installed torch {build.version} is built for {build.kind}: install its build for {wanted}"


__getattr__ = moved_names(__name__, {"Said": f"{__name__}:ProbeResult", "Seen": f"{__name__}:VisibleDevice"})
