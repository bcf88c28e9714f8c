"""What the vendors' devices have in common: torch knows each by a module of the same shape as its first one.

``torch.<vendor>`` has ``set_device``, ``synchronize``, ``mem_get_info``, ``empty_cache``, streams and graphs, under the
same names. A runtime says which module that is, how its failures read, and what it executes instead of plain torch.
"""

from __future__ import annotations

import contextlib
import re
from abc import abstractmethod
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from omni_actors.platforms.platform import Fault, PlatformError
from omni_actors.platforms.runtime import DeviceRuntime, Graphs, Memory, T

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    import torch

    from omni_actors.platforms.runtime.kernels import Kernels

WARM_UP = 3
"""Runs before a recording: what is made on first use (workspaces, compiled kernels) must not be made in it."""

SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64)
"""Rows that recorded steps are padded to."""


class ModuleRuntime(DeviceRuntime):
    """A device by its vendor's module of torch. Made by :meth:`open`, which makes it this thread's device.

    A failure is about memory if its text has :attr:`short` in it. One that has :attr:`failed` in it came from the
    device: then the device is asked whether it still does anything, since after some failures every later call fails.
    One that has :attr:`lost` in it is not asked about.
    """

    device_type: ClassVar[str]
    """What torch calls devices of this kind."""
    graph_class: ClassVar[str] = ""
    """Name of the recording's class in the vendor's module; empty if there is none."""
    short: ClassVar[re.Pattern[str]]
    failed: ClassVar[re.Pattern[str]]
    lost: ClassVar[re.Pattern[str]] = re.compile(r"(?!)")

    module: Any
    """The vendor's module, once open."""
    _kernels: Kernels

    @abstractmethod
    def bring(self) -> Any:
        """Import what the vendor brings; its module of torch. Raises :class:`PlatformError` with the remedy when the
        package is missing or finds no device."""

    @abstractmethod
    def choose(self) -> Kernels:
        """What this device executes. Called once, when it is open."""

    def open(self) -> None:
        self.module = self.bring()
        super().open()
        self.module.set_device(self.torch_device)
        self._kernels = self.choose()

    @property
    def torch_device(self) -> torch.device:
        import torch

        return torch.device(self.device_type, self.index)

    @property
    def index(self) -> int:
        """The device's number among those that this process sees."""
        _, _, number = self.device.rpartition(":")
        return int(number) if number.isdecimal() else 0

    @property
    def kernels(self) -> Kernels:
        return self._kernels

    def memory(self) -> Memory:
        device = self.torch_device
        free, total = self.module.mem_get_info(device)
        used, peak = self.module.memory_allocated(device), self.module.max_memory_allocated(device)
        return Memory(int(total), int(free), int(used), int(peak))

    def synchronize(self) -> None:
        self.module.synchronize()

    def free_memory(self) -> None:
        """torch's allocator keeps what was freed in blocks of the sizes that were asked for."""
        self.module.empty_cache()

    def fault(self, error: BaseException) -> Fault:
        text = str(error)
        if not isinstance(error, RuntimeError):
            return super().fault(error)
        if self.lost.search(text):
            return Fault.DEVICE
        if self.short.search(text):
            return Fault.MEMORY
        if self.failed.search(text):
            return Fault.OTHER if self._answers() else Fault.DEVICE
        return super().fault(error)

    def _answers(self) -> bool:
        """Whether the device still does what this process asks."""
        try:
            self.synchronize()
        except Exception:
            return False
        return True

    def recorded(self) -> Graphs | None:
        """Recordings by the vendor's module, where it has them."""
        if not self.graph_class or not hasattr(self.module, self.graph_class):
            return None
        return ModuleGraphs(self.module, self.graph_class)

    def profiler(self, folder: Path) -> AbstractContextManager[Any]:
        """A trace that TensorBoard and Perfetto read."""
        from torch import profiler

        wanted = {profiler.ProfilerActivity.CPU}
        own = getattr(profiler.ProfilerActivity, self.module.__name__.rpartition(".")[2].upper(), None)
        if own is not None and own in profiler.supported_activities():
            wanted.add(own)
        trace: AbstractContextManager[Any] = profiler.profile(
            activities=wanted, on_trace_ready=profiler.tensorboard_trace_handler(str(folder))
        )
        return trace


class ModuleGraphs(Graphs):
    """Recordings by a vendor's module: a graph for each, a pool of memory that all share, a stream to record on.

    Warming up and recording are on the same stream: libraries keep handles and workspaces by stream, and what they make
    on first use (hipBLASLt's handle, say) must not be made in a recording. It is one stream for all, as sharing a pool
    asks for.
    """

    sizes = SIZES

    def __init__(self, module: Any, graph_class: str) -> None:
        self._module = module
        self._graph_class = graph_class
        self._pool: Any = None
        self._stream: Any = None

    def capture(self, run: Callable[[], T]) -> Callable[[], T]:
        module = self._module
        if self._stream is None:
            self._stream = module.Stream()
        aside = self._stream
        aside.wait_stream(module.current_stream())
        with module.stream(aside):
            for _ in range(WARM_UP):
                run()
        module.current_stream().wait_stream(aside)
        module.synchronize()
        graph = getattr(module, self._graph_class)()
        with module.graph(graph, pool=self._pool, stream=aside):
            result = run()
        if self._pool is None:
            self._pool = graph.pool()

        def replay() -> T:
            graph.replay()
            return result

        return replay


def bring(name: str, remedy: str) -> Any:
    """Import a vendor's package. Raises :class:`PlatformError` when it is missing or broken."""
    try:
        return import_module(name)
    except ImportError as error:
        raise PlatformError(f"package '{name}' cannot be imported ({error}): {remedy}") from error


def has(name: str) -> bool:
    """Whether a package is installed, without importing it."""
    with contextlib.suppress(ImportError, ValueError):
        return find_spec(name) is not None
    return False
