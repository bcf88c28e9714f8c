"""The contract of a platform, one kind of hardware: the half that the serving process uses.

All knowledge of a device's name lies in platforms. A platform object is made in the serving process, where it must not
import torch or touch a device: it reads files, environment variables and device nodes. A worker gets the platform's
decisions as environment variables, a device name and dotted names: of an engine, and of the platform's
:class:`~omni_actors.platforms.runtime.DeviceRuntime`, the half that the worker makes and that may import torch and
touch the device.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar

from omni_actors.protocol.errors import ErrorInfo, OmniError
from omni_actors.protocol.options import Option, defaults_of, options_from

CONTRACT = 1
"""Version of this contract. The version changes when a platform written against it would no longer do the right
thing."""


VLLM_ENGINE = "omni_actors.worker.engines.vllm:VllmEngine"
"""Dotted name of the engine of kind ``vllm``, for platforms that have one."""


class PlatformError(OmniError):
    """An unknown platform, two platforms that claim the machine, or a request that a platform cannot serve."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorInfo(message=message, type="configuration_error", code="bad_platform", status=500))


@dataclass(frozen=True, slots=True)
class Device:
    """A device by the name that operators use (``cpu``, ``cuda:0``).

    Args:
        name: The device's name.
        memory: Bytes of memory; ``None`` if unknown.
        description: The model, for operators.
        id: The vendor's name for the device (a UUID, a MIG slice, a PCI address), which is compared and shown, never
            parsed.
        trouble: A sentence about the device's fault; empty for a healthy device.
    """

    name: str
    memory: int | None
    description: str = ""
    id: str | None = None
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class Detection:
    """The result of a platform's detection. A detection is true when a stage can run on the platform.

    Args:
        usable: Whether a stage can run.
        present: Whether the hardware exists, usable or not. Operators are told of hardware that exists and cannot be
            used.
        reason: One line: the devices found, or what is missing and how to get it.

    Example:
        >>> bool(Detection(usable=False, present=True, reason="the driver is not loaded"))
        False
    """

    usable: bool
    present: bool
    reason: str

    def __bool__(self) -> bool:
        return self.usable


class Verdict(Enum):
    """The severity of a :class:`Finding`."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of a diagnosis: the subject, what was found, and the remedy (empty when none is needed)."""

    subject: str
    verdict: Verdict
    found: str
    remedy: str = ""


class Fault(Enum):
    """The kind of fault behind an exception of a worker's computation."""

    MEMORY = "memory"
    """Memory was short: a smaller batch may fit, and earlier results are unharmed."""
    DEVICE = "device"
    """The device no longer works for this process: only a new process helps."""
    OTHER = "other"
    """Any other fault, of the input or of the model's code."""


class _OldOptions:
    """A dict that platforms stated beside ``options`` before :class:`Option` existed.

    The dict can still be read from a class, with a :class:`DeprecationWarning`. A plug-in's class that states the dict
    replaces this descriptor.
    """

    def __init__(self, field: str) -> None:
        self._field = field

    def __get__(self, platform: OmniPlatform | None, kind: type[OmniPlatform]) -> dict[str, Any]:
        message = f"{kind.__name__}.options_{self._field}: read options instead"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        found = {name: getattr(option, self._field) for name, option in platform_options(kind).items()}
        return {name: value for name, value in found.items() if value}


class OmniPlatform(ABC):
    """One kind of hardware. Subclasses are made without arguments and hold no state that changes.

    A concrete subclass states the version of the contract that it was written against: ``contract = 1``. The base class
    has no version, so that none is inherited by accident.

    ``options`` are the options that a deploy file may set under ``platforms.<name>``, by name. ``dtypes`` are the
    dtypes that the platform's engines compute in, ``default_dtype`` among them.
    """

    contract: ClassVar[int]
    name: ClassVar[str]
    runtime: ClassVar[str] = "omni_actors.platforms.runtime:DeviceRuntime"
    """Dotted name of the :class:`~omni_actors.platforms.runtime.DeviceRuntime` that the platform's workers make."""
    default_dtype: ClassVar[str] = "float32"
    dtypes: ClassVar[tuple[str, ...]] = ("float32", "bfloat16")
    engines: ClassVar[Mapping[str, str]] = {
        "autoregressive": "omni_actors.worker.engines.autoregressive:AutoregressiveEngine",
        "generation": "omni_actors.worker.engines.oneshot:GenerationEngine",
        "diffusion": "omni_actors.worker.engines.diffusion:DiffusionEngine",
    }
    options: ClassVar[Mapping[str, Option]] = {}
    options_doc: ClassVar[Any] = _OldOptions("doc")
    options_type: ClassVar[Any] = _OldOptions("type")
    options_choices: ClassVar[Any] = _OldOptions("choices")
    plannable: ClassVar[bool] = False
    """Whether a deployment may name this platform on a machine where :meth:`detect` is false."""

    distributions: ClassVar[Mapping[str, str]] = {}
    """Packages that workers import: name → the extra of this package that installs them, or a remedy in words."""
    visibility: ClassVar[tuple[str, ...]] = ()
    """Environment variables that hide devices from a process."""
    collectives: ClassVar[str] = "gloo"
    """torch.distributed's backend between the ranks of a replica; empty for a platform without one, whose replicas have
    one rank."""
    shared: ClassVar[bool] = False
    """Whether the ranks of a replica share one device, as on a processor: there may be as many ranks as :meth:`cores`.
    Otherwise each rank has a device of its own."""
    own_memory: ClassVar[bool] = True
    """Whether the devices have memory of their own, beside the host's: only then can weights wait in the host's."""
    vllm_builds: ClassVar[tuple[str, ...]] = ()
    """Builds of vLLM that run on the platform, if :attr:`engines` has a ``vllm``: patterns for the whole local part of
    the installed version (``cpu`` in ``0.32.0+cpu``; empty in most versions)."""
    transports: ClassVar[tuple[str, ...]] = ()
    """Transports that hand a tensor to another process without a copy to the host, best first. Two stages whose
    platforms share a transport may be joined by it."""
    quantization: ClassVar[Mapping[str, str]] = {}
    """``quant_method`` of a checkpoint → why the platform cannot run the checkpoint; an empty text if it can. Other
    methods are refused as unknown."""

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        old = [name for name in _OLD_OPTIONS if name in cls.__dict__]
        stated = cls.__dict__.get("options")
        plain = isinstance(stated, Mapping) and any(not isinstance(option, Option) for option in stated.values())
        if old or plain:
            named = ", ".join(old) or "options with plain defaults"
            message = f"platform {cls.__name__} states {named}: state options of omni_actors.platforms.Option"
            warnings.warn(message, DeprecationWarning, stacklevel=3)  # 1 is this method, 2 is ABCMeta

    @abstractmethod
    def detect(self) -> Detection:
        """Detect the platform's devices.

        The detection is quick, imports no torch and opens no device. A missing or broken library of the vendor is part
        of the result, and raises nothing.

        Returns:
            Whether a stage can run on this machine, and why.
        """

    @abstractmethod
    def devices(self) -> tuple[Device, ...]:
        """Return the devices that this process may use, in a stable order. There is at least one when :meth:`detect` is
        true."""

    @abstractmethod
    def cores(self) -> int:
        """Return the number of CPU cores that the deployment's workers may keep busy together."""

    @abstractmethod
    def worker_environment(self, device: str, threads: int, options: Mapping[str, Any]) -> dict[str, str]:
        """Return the environment of a worker: thread counts and device visibility.

        Args:
            device: The worker's device.
            threads: The worker's CPU threads.
            options: A value for every option of the platform.

        Returns:
            Variables that are added to those of the worker's parent.
        """

    def worker_device(self, device: str) -> str:
        """Return the name of a device inside a worker that has :meth:`worker_environment`."""
        return device

    def diagnose(self) -> tuple[Finding, ...]:
        """Return the findings for ``doctor``. No device is opened."""
        found = self.detect()
        verdict = Verdict.OK if found else Verdict.PROBLEM if found.present else Verdict.WARNING
        about = [Finding(self.name, verdict, found.reason)]
        if found:
            about += [
                Finding(
                    device.name, Verdict.PROBLEM if device.trouble else Verdict.OK, device.trouble or device.description
                )
                for device in self.devices()
            ]
        return tuple(about)

    def usual_dtype(self, options: Mapping[str, Any]) -> str:
        """Return the dtype of stages that name none, if the stage supports it. ``options`` has a value for every
        option."""
        return self.default_dtype

    def usual_devices(self, stage: int, threads: int, options: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the devices over which a stage's replicas are spread when nobody sets them.

        Args:
            stage: The stage's place in the plan.
            threads: The CPU threads of each replica.
            options: A value for every option of the platform.
        """
        return (self.devices()[0].name,)

    def engine_for(self, kind: str) -> str:
        """Return the dotted name of the platform's engine of a kind.

        Args:
            kind: The engine's kind, such as ``autoregressive``.

        Raises:
            PlatformError: The platform has no engine of that kind.
        """
        try:
            return self.engines[kind]
        except KeyError:
            known = ", ".join(sorted(self.engines))
            raise PlatformError(f"platform '{self.name}' has no engine of kind '{kind}'; it has: {known}") from None

    def check_device(self, device: str) -> None:
        """Check that a device exists.

        Args:
            device: The device's name, as an operator writes it.

        Raises:
            PlatformError: The platform has no such device; the message names its devices.
        """
        known = [d.name for d in self.devices()]
        if device not in known:
            raise PlatformError(f"platform '{self.name}' has no device '{device}'; it has: {', '.join(known)}")


_OLD_OPTIONS = ("options_doc", "options_type", "options_choices")


def platform_options(platform: OmniPlatform | type[OmniPlatform]) -> dict[str, Option]:
    """Return what a deploy file may set under ``platforms.<name>``.

    Args:
        platform: The platform or its class. A class that still states plain defaults, with ``options_doc``,
            ``options_type`` and ``options_choices`` beside them, is read too.

    Returns:
        Option name → :class:`Option`.

    Example:
        >>> from omni_actors.platforms.cpu import CpuPlatform
        >>> platform_options(CpuPlatform)["dtype"].choices
        ('float32', 'bfloat16', 'auto')
        >>> default_options(CpuPlatform)
        {'dtype': 'float32', 'numa': True}
    """
    kind = platform if isinstance(platform, type) else type(platform)
    if all(isinstance(option, Option) for option in platform.options.values()) and not any(
        isinstance(_stated(kind, name), Mapping) for name in _OLD_OPTIONS
    ):
        return dict(platform.options)
    doc, types, choices = (found if isinstance(found := _stated(kind, name), Mapping) else {} for name in _OLD_OPTIONS)
    return options_from(platform.options, doc, types, {}, choices)


def default_options(platform: OmniPlatform | type[OmniPlatform]) -> dict[str, Any]:
    """Return the default of each of a platform's options, as :meth:`OmniPlatform.worker_environment` takes them."""
    return defaults_of(platform_options(platform))


def _stated(kind: type[OmniPlatform], name: str) -> Any:
    """Return an attribute as a class of the hierarchy states it, without asking a descriptor."""
    return next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), None)
