"""The contract between the product and a kind of hardware: the half that a worker asks.

A worker makes one :class:`DeviceRuntime` for its device and opens it before its engine is imported. It may import torch
and the vendor's packages, which no module of the other half does, and only in :meth:`DeviceRuntime.open` and after it.
Everything that a step executes differently on this hardware is a value of it: the kernels, the graphs, the transport.
Engines and models ask for them and hold no device's name.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from omni_actors.platforms.platform import Fault

if TYPE_CHECKING:
    import torch

    from omni_actors.platforms.runtime.kernels import Kernels

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Capability:
    """What a device can do. ``name`` is the vendor's own (``sm_90``, ``gfx942``, ``Ascend910B``, ``avx512``);
    ``features`` are words that kernels are chosen by (``bf16``, ``fp8``, ``amx``)."""

    name: str
    features: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Memory:
    """A device's memory in bytes: ``total``; ``free`` for anyone; ``used`` by this process, and its ``peak`` since it
    started. ``None`` where it cannot be known."""

    total: int | None
    free: int | None
    used: int | None = None
    peak: int | None = None


@dataclass(frozen=True, slots=True)
class Patch:
    """A change of somebody else's package that this hardware needs. ``apply`` is called once in a worker, when the
    runtime opens; :attr:`name` and ``why`` are told by ``doctor``."""

    name: str
    why: str
    apply: Callable[[], None]


class Graphs(ABC):
    """Records what a step launches and launches it again as one."""

    sizes: tuple[int, ...]
    """Rows that steps are padded to, ascending: one recording for each."""

    @abstractmethod
    def capture(self, run: Callable[[], T]) -> Callable[[], T]:
        """Run ``run`` as often as it takes to warm up, record it, and return what replays it: on the same memory, with
        the same result tensors, which hold what it gave until this or another recording is called: they share memory.
        ``run`` waits for no result of the device. Raises what ``run`` raises, and RuntimeError when it does what cannot
        be recorded."""


class DeviceTransport(ABC):
    """Hands tensors of the device to another process without a copy through the host. One thread calls it."""

    kind: str
    """One of the platform's :attr:`~omni_actors.platforms.platform.OmniPlatform.transports`."""

    @abstractmethod
    def export(self, tensor: torch.Tensor) -> bytes:
        """A handle by which another process opens what ``tensor`` (contiguous, on this device) holds now: a copy in
        memory of the transport's own, complete for whoever opens it, until the handle is released. The tensor itself is
        the caller's again on return. Raises :class:`TransportError`, also for lack of memory: it goes through the host
        then."""

    @abstractmethod
    def open(self, handle: bytes) -> torch.Tensor:
        """The tensor behind another process's handle, on this device: a view of its memory, valid until :meth:`close`,
        or a copy. Raises :class:`TransportError` when that process is gone or this one cannot reach its device."""

    def release(self, handle: bytes) -> None:
        """Nobody reads it any more: the exporting side forgets what it keeps of it. Unknown ones are ignored."""

    def close(self, handle: bytes) -> None:
        """This process is done with an opened handle, once for each time that it was opened. What was read of it is
        complete when this returns."""


class TransportError(RuntimeError):
    """A device's memory cannot be handed over (any more)."""


class DeviceRuntime(ABC):
    """One worker's hold on its device.

    ``device`` is what the platform calls it in the worker (:meth:`OmniPlatform.worker_device`), ``options`` the
    platform's (a value for every key). Making one touches nothing; :meth:`open` does.
    """

    patches: ClassVar[tuple[Patch, ...]] = ()

    def __init__(self, device: str, options: Mapping[str, Any]) -> None:
        self.device = device
        self.options = options

    def open(self) -> None:
        """Import what the vendor brings, apply :attr:`patches`, and make the device this process's own. Called once,
        first. Raises :class:`~omni_actors.platforms.platform.PlatformError` with the remedy."""
        for patch in self.patches:
            patch.apply()

    @property
    def torch_device(self) -> torch.device:
        """The device as torch names it."""
        import torch

        return torch.device(self.device)

    @property
    @abstractmethod
    def kernels(self) -> Kernels:
        """What executes where hardware makes a difference. The same value at every call."""

    @abstractmethod
    def capability(self) -> Capability: ...

    @abstractmethod
    def memory(self) -> Memory: ...

    def synchronize(self) -> None:
        """Return when the device has done all that was asked of it. Raises what went wrong there."""

    def fault(self, error: BaseException) -> Fault:
        """What an exception says that computing raised; here, what is true of host memory."""
        if isinstance(error, MemoryError):
            return Fault.MEMORY
        # By name and message: frameworks have types of their own, and none of them is imported here.
        if any(kind.__name__ == "OutOfMemoryError" for kind in type(error).__mro__):
            return Fault.MEMORY
        return Fault.MEMORY if isinstance(error, RuntimeError) and "allocate memory" in str(error) else Fault.OTHER

    def free_memory(self) -> None:
        """Give back what an allocator keeps for later. Called after :attr:`Fault.MEMORY`."""

    def graphs(self) -> Graphs | None:
        """How steps are recorded; ``None`` where they run as they are written."""
        return None

    def transport(self) -> DeviceTransport | None:
        """How tensors leave without the host; ``None`` where they do not."""
        return None

    def profiler(self, folder: Path) -> AbstractContextManager[Any]:
        """What is computed inside is recorded into a trace in ``folder``, where this hardware can."""
        return contextlib.nullcontext()
