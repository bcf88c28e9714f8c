"""The contract of a platform, one kind of hardware: the half that a worker uses.

A worker makes one :class:`DeviceRuntime` for its device and opens the runtime before it imports its engine. A runtime
may import torch and the vendor's packages, in :meth:`DeviceRuntime.open` and later; no module of the other half does.
The kernels, graphs and transport of a runtime are all that a step executes differently on this hardware, so engines and
models contain no device's name.
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
    """The abilities of a device. ``name`` is the vendor's (``sm_90``, ``gfx942``, ``Ascend910B``, ``avx512``);
    ``features`` are words by which kernels are chosen (``bf16``, ``fp8``, ``amx``)."""

    name: str
    features: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Memory:
    """A device's memory in bytes: ``total``; ``free`` for any process; ``used`` by this process, and its ``peak`` since
    the process started. ``None`` stands for an unknown number."""

    total: int | None
    free: int | None
    used: int | None = None
    peak: int | None = None


@dataclass(frozen=True, slots=True)
class Patch:
    """A change of another package that this hardware needs. ``apply`` is called once in a worker, when the runtime
    opens; ``doctor`` shows :attr:`name` and ``why``."""

    name: str
    why: str
    apply: Callable[[], None]


class Graphs(ABC):
    """Captures the device operations of a step as a graph, and replays the graph as one operation."""

    sizes: tuple[int, ...]
    """Numbers of rows to which steps are padded, ascending; there is one graph per number."""

    @abstractmethod
    def capture(self, run: Callable[[], T]) -> Callable[[], T]:
        """Capture a function as a graph.

        ``run`` is called as often as a warm-up takes, and once more for the capture. ``run`` must not wait for results
        of the device.

        Args:
            run: The function.

        Returns:
            A function that replays the graph on the same memory. It returns the same result tensors each time; the
            tensors are valid until this or another graph is replayed, because graphs share memory.

        Raises:
            RuntimeError: ``run`` does what cannot be captured. Exceptions of ``run`` are raised as they are.
        """


class DeviceTransport(ABC):
    """A transport that hands tensors of the device to another process without a copy through the host. One thread calls
    it."""

    kind: str
    """The transport's name among the platform's :attr:`~omni_actors.platforms.platform.OmniPlatform.transports`."""

    @abstractmethod
    def export(self, tensor: torch.Tensor) -> bytes:
        """Export the content of a tensor to another process.

        Args:
            tensor: A contiguous tensor on this device. The caller may change it once the call returns.

        Returns:
            A handle, by which the other process opens a complete copy in the transport's own memory, until the handle
            is released.

        Raises:
            TransportError: The tensor cannot be exported, also for lack of memory; the tensor then goes through the
                host.
        """

    @abstractmethod
    def open(self, handle: bytes) -> torch.Tensor:
        """Open the tensor behind another process's handle, on this device.

        Returns:
            A view of the other process's memory, valid until :meth:`close`, or a copy.

        Raises:
            TransportError: The other process is gone, or this process cannot reach its device.
        """

    def release(self, handle: bytes) -> None:
        """Forget a handle that nobody reads any more, on the exporting side. Unknown handles are ignored."""

    def close(self, handle: bytes) -> None:
        """Close an opened handle, once for each time that it was opened. All reads are complete when the call
        returns."""


class TransportError(RuntimeError):
    """The memory of a device cannot be handed over, or no longer."""


class DeviceRuntime(ABC):
    """One worker's access to its device. Making a runtime touches nothing; :meth:`open` does.

    Args:
        device: The device's name in the worker (:meth:`OmniPlatform.worker_device`).
        options: A value for every option of the platform.
    """

    patches: ClassVar[tuple[Patch, ...]] = ()

    def __init__(self, device: str, options: Mapping[str, Any]) -> None:
        self.device = device
        self.options = options

    def open(self) -> None:
        """Import the vendor's packages, apply :attr:`patches`, and make the device this process's own. Called once,
        before anything else.

        Raises:
            PlatformError: The device cannot be opened; the message has the remedy.
        """
        for patch in self.patches:
            patch.apply()

    @property
    def torch_device(self) -> torch.device:
        """The device as a ``torch.device``."""
        import torch

        return torch.device(self.device)

    @property
    @abstractmethod
    def kernels(self) -> Kernels:
        """The platform's kernels. Every call returns the same value."""

    @abstractmethod
    def capability(self) -> Capability: ...

    @abstractmethod
    def memory(self) -> Memory: ...

    def synchronize(self) -> None:
        """Wait until the device has done all its work. Raises the device's errors."""

    def fault(self, error: BaseException) -> Fault:
        """Return the kind of fault behind an exception of a computation; in this class, by the rules of host memory."""
        if isinstance(error, MemoryError):
            return Fault.MEMORY
        # Errors are recognised by name and message: their types are in frameworks, which are not imported here.
        if any(kind.__name__ == "OutOfMemoryError" for kind in type(error).__mro__):
            return Fault.MEMORY
        return Fault.MEMORY if isinstance(error, RuntimeError) and "allocate memory" in str(error) else Fault.OTHER

    def free_memory(self) -> None:
        """Give unused memory of the allocator back. Called after :attr:`Fault.MEMORY`."""

    @property
    def host_device(self) -> torch.device:
        """The host's memory as a ``torch.device``."""
        import torch

        return torch.device("cpu")

    def host(self) -> AbstractContextManager[Any]:
        """Return a context in which torch computes in the host's memory, whatever computes on the device around it."""
        return contextlib.nullcontext()

    def onload(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy of a tensor in the device's memory, of one that lies in the host's. The copy's memory is free
        again when nothing refers to it. Raises the device's error (:meth:`fault`) without enough memory."""
        return tensor.to(self.torch_device)

    def graphs(self) -> Graphs | None:
        """Return the capture of graphs; ``None`` for a device whose steps run as they are written."""
        return None

    def transport(self) -> DeviceTransport | None:
        """Return the transport that bypasses the host; ``None`` without one."""
        return None

    def profiler(self, folder: Path) -> AbstractContextManager[Any]:
        """Return a context in which computation is recorded as a trace in ``folder``, if the hardware supports
        traces."""
        return contextlib.nullcontext()
