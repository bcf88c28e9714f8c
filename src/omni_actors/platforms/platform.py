"""The contract between the product and a kind of hardware.

Everything that knows a device's name lives behind it. A platform object is made in the serving process, where it must
not import torch nor touch a device: it looks at files, environment and device nodes. What it decides reaches a worker
as environment, a device name and the dotted name of an engine.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar

from omni_actors.protocol.errors import ErrorInfo, OmniError


class PlatformError(OmniError):
    """No such platform, two that claim the machine, or a thing that the platform cannot do."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorInfo(message=message, type="configuration_error", code="bad_platform", status=500))


@dataclass(frozen=True, slots=True)
class Device:
    """A device as an operator names it (``cpu``, ``cuda:0``). ``memory`` in bytes, ``None`` if it cannot be known."""

    name: str
    memory: int | None
    description: str = ""


class Fault(Enum):
    """What an exception says that a worker's computation raised."""

    MEMORY = "memory"
    """There was not enough memory for it: less at once may fit, and what was there before is unharmed."""
    DEVICE = "device"
    """The device does no more for this process, whatever it is asked: only a new process helps."""
    OTHER = "other"
    """Anything else: this input, or the model's code."""


class OmniPlatform(ABC):
    """One kind of hardware. Subclasses are made without arguments and hold no state that changes.

    ``options`` are what a deploy file may set under ``platforms.<name>`` (name → default); ``options_doc`` has a
    sentence for each, ``options_type`` the type of each whose default is ``None``. ``dtypes`` are the dtypes that its
    engines compute in, ``default_dtype`` among them.
    """

    name: ClassVar[str]
    default_dtype: ClassVar[str] = "float32"
    dtypes: ClassVar[tuple[str, ...]] = ("float32", "bfloat16")
    engines: ClassVar[Mapping[str, str]] = {
        "autoregressive": "omni_actors.worker.engines.autoregressive:AutoregressiveEngine",
        "generation": "omni_actors.worker.engines.generation:GenerationEngine",
    }
    options: ClassVar[Mapping[str, Any]] = {}
    options_doc: ClassVar[Mapping[str, str]] = {}
    options_type: ClassVar[Mapping[str, type]] = {}
    plannable: ClassVar[bool] = False
    """Whether a deployment may be planned, by naming this platform, on a machine where :meth:`detect` is false."""

    @abstractmethod
    def detect(self) -> bool:
        """Whether this machine has such a device. Cheap, without torch, without opening a device."""

    @abstractmethod
    def devices(self) -> tuple[Device, ...]:
        """The devices that this process may use, in a stable order; never empty when :meth:`detect` is true."""

    @abstractmethod
    def cores(self) -> int:
        """CPU cores that the deployment's workers may keep busy together."""

    @abstractmethod
    def worker_environment(self, device: str, threads: int, options: Mapping[str, Any]) -> dict[str, str]:
        """What a worker on ``device`` gets on top of its parent's environment: thread counts and device visibility.
        ``options`` has a value for every key of :attr:`options`."""

    def worker_device(self, device: str) -> str:
        """What ``device`` is called inside a worker that has :meth:`worker_environment`."""
        return device

    def fault(self, error: BaseException) -> Fault:
        """What an exception says that computing raised. Called in a worker; here, what is true of host memory."""
        if isinstance(error, MemoryError):
            return Fault.MEMORY
        # By name and message: frameworks have types of their own, and none of them is imported here.
        if any(kind.__name__ == "OutOfMemoryError" for kind in type(error).__mro__):
            return Fault.MEMORY
        return Fault.MEMORY if isinstance(error, RuntimeError) and "allocate memory" in str(error) else Fault.OTHER

    def free_memory(self) -> None:
        """Give back what an allocator keeps for later. Called in a worker, after :attr:`Fault.MEMORY`."""

    def engine_for(self, kind: str) -> str:
        """The dotted name of this platform's engine of a kind; :class:`PlatformError` if it has none."""
        try:
            return self.engines[kind]
        except KeyError:
            known = ", ".join(sorted(self.engines))
            raise PlatformError(f"platform '{self.name}' has no engine of kind '{kind}'; it has: {known}") from None

    def check_device(self, device: str) -> None:
        """Raises :class:`PlatformError` if there is no such device."""
        known = [d.name for d in self.devices()]
        if device not in known:
            raise PlatformError(f"platform '{self.name}' has no device '{device}'; it has: {', '.join(known)}")
