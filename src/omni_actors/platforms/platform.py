"""The contract between the product and a kind of hardware: the half that the serving process asks.

Everything that knows a device's name lives behind it. A platform object is made in the serving process, where it must
not import torch nor touch a device: it looks at files, environment and device nodes. What it decides reaches a worker
as environment, a device name and dotted names: of an engine, and of the other half, the platform's
:class:`~omni_actors.platforms.runtime.DeviceRuntime`, which the worker makes and which may do all that.
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
"""Version of this contract: another one when a platform written against this one would no longer do the right thing."""


VLLM_ENGINE = "omni_actors.worker.engines.vllm:VllmEngine"
"""The engine of kind ``vllm``, where a platform has one."""


class PlatformError(OmniError):
    """No such platform, two that claim the machine, or a thing that the platform cannot do."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorInfo(message=message, type="configuration_error", code="bad_platform", status=500))


@dataclass(frozen=True, slots=True)
class Device:
    """A device as an operator names it (``cpu``, ``cuda:0``). ``memory`` in bytes, ``None`` if it cannot be known.

    ``id`` is the vendor's own name for it (a UUID, a MIG slice, a PCI address): compared and shown, never parsed.
    ``trouble`` is a sentence about what is wrong with it, empty while it is healthy.
    """

    name: str
    memory: int | None
    description: str = ""
    id: str | None = None
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class Detection:
    """What a platform finds on this machine. It is true when a stage can run on it.

    ``present`` says that there is such hardware, whether or not it can be used: what is present and not usable is told
    to the operator, never passed over. ``reason`` is one line: what was found, or what is missing and how to get it.
    """

    usable: bool
    present: bool
    reason: str

    def __bool__(self) -> bool:
        return self.usable


class Verdict(Enum):
    """How good a :class:`Finding` is."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of a diagnosis: what was looked at, what was found, and what to do about it (empty when nothing)."""

    subject: str
    verdict: Verdict
    found: str
    remedy: str = ""


class Fault(Enum):
    """What an exception says that a worker's computation raised."""

    MEMORY = "memory"
    """There was not enough memory for it: less at once may fit, and what was there before is unharmed."""
    DEVICE = "device"
    """The device does no more for this process, whatever it is asked: only a new process helps."""
    OTHER = "other"
    """Anything else: this input, or the model's code."""


class _OldOptions:
    """A dict that platforms stated beside ``options`` before there was :class:`Option`: still read from a class, with a
    :class:`DeprecationWarning`, and still stated by a plug-in's class, where it replaces this."""

    def __init__(self, field: str) -> None:
        self._field = field

    def __get__(self, platform: OmniPlatform | None, kind: type[OmniPlatform]) -> dict[str, Any]:
        message = f"{kind.__name__}.options_{self._field}: read options instead"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        found = {name: getattr(option, self._field) for name, option in platform_options(kind).items()}
        return {name: value for name, value in found.items() if value}


class OmniPlatform(ABC):
    """One kind of hardware. Subclasses are made without arguments and hold no state that changes.

    A subclass that can be made says which version of this contract it was written against: ``contract = 1``. It is not
    inherited by accident: the base class has none.

    ``options`` are what a deploy file may set under ``platforms.<name>``, by name. ``dtypes`` are the dtypes that the
    platform's engines compute in, ``default_dtype`` among them.
    """

    contract: ClassVar[int]
    name: ClassVar[str]
    runtime: ClassVar[str] = "omni_actors.platforms.runtime:DeviceRuntime"
    """Dotted name of the :class:`~omni_actors.platforms.runtime.DeviceRuntime` that its workers make."""
    default_dtype: ClassVar[str] = "float32"
    dtypes: ClassVar[tuple[str, ...]] = ("float32", "bfloat16")
    engines: ClassVar[Mapping[str, str]] = {
        "autoregressive": "omni_actors.worker.engines.autoregressive:AutoregressiveEngine",
        "generation": "omni_actors.worker.engines.oneshot:GenerationEngine",
    }
    options: ClassVar[Mapping[str, Option]] = {}
    options_doc: ClassVar[Any] = _OldOptions("doc")
    options_type: ClassVar[Any] = _OldOptions("type")
    options_choices: ClassVar[Any] = _OldOptions("choices")
    plannable: ClassVar[bool] = False
    """Whether a deployment may be planned, by naming this platform, on a machine where :meth:`detect` is false."""

    distributions: ClassVar[Mapping[str, str]] = {}
    """Packages that its workers import: name → what asks for it (an extra of this package, or what a remedy says)."""
    visibility: ClassVar[tuple[str, ...]] = ()
    """Environment variables that hide devices from a process."""
    collectives: ClassVar[str] = "gloo"
    """torch.distributed's backend between a replica's ranks; empty if there is none: then it is one rank."""
    shared: ClassVar[bool] = False
    """Whether the ranks of a replica compute on one device together, as they do on a processor: then there may be as
    many as :meth:`cores`. Otherwise each has a device of its own."""
    vllm_builds: ClassVar[tuple[str, ...]] = ()
    """Which builds of vLLM run on it, where :attr:`engines` has a ``vllm``: patterns that the local part of the
    installed version matches as a whole (``cpu`` of ``0.32.0+cpu``; it is empty for most)."""
    transports: ClassVar[tuple[str, ...]] = ()
    """Ways to hand a tensor to another process without a copy to the host, best first. Two stages whose platforms share
    one may be joined by it."""
    quantization: ClassVar[Mapping[str, str]] = {}
    """``quant_method`` of a checkpoint → why it cannot be run here; an empty text for one that can. One that is not
    named is refused as unknown."""

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
        """Whether this machine has such a device that can be used. Cheap, without torch, without opening a device; it
        does not raise because a vendor's library is missing or broken: that is what it finds."""

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

    def diagnose(self) -> tuple[Finding, ...]:
        """What an operator should know when it does not work. No device is opened here, either."""
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
        """What a stage computes in that names no dtype, if the stage can."""
        return self.default_dtype

    def usual_devices(self, stage: int, threads: int, options: Mapping[str, Any]) -> tuple[str, ...]:
        """Where the replicas of the ``stage``-th stage, of so many threads each, take turns if nobody says."""
        return (self.devices()[0].name,)

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


_OLD_OPTIONS = ("options_doc", "options_type", "options_choices")


def platform_options(platform: OmniPlatform | type[OmniPlatform]) -> dict[str, Option]:
    """Return what a deploy file may set under ``platforms.<name>``.

    Args:
        platform: The platform or its class. A class that still states plain defaults, with ``options_doc``,
            ``options_type`` and ``options_choices`` beside them, is read too.

    Returns:
        Option name → :class:`Option`.
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
