"""The common part of the vendors' runtimes: torch has a module for each vendor, all of the same shape.

``torch.<vendor>`` has ``set_device``, ``synchronize``, ``mem_get_info``, ``empty_cache``, streams and graphs under the
same names. A runtime names its module, the texts of its failures, and the kernels that replace plain torch.
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
"""Runs before a capture, so that workspaces and compiled kernels are not made during the capture."""

SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64)
"""Numbers of rows to which captured steps are padded."""


class ModuleRuntime(DeviceRuntime):
    """A device that is used through its vendor's module of torch. :meth:`open` makes it the device of this thread.

    A failure whose text matches :attr:`short` is a lack of memory. A failure whose text matches :attr:`failed` came
    from the device, which is then asked for a sign of life, since after some failures every later call fails. A failure
    whose text matches :attr:`lost` needs no such question.
    """

    device_type: ClassVar[str]
    """torch's name for devices of this kind."""
    graph_class: ClassVar[str] = ""
    """Name of the class of graphs in the vendor's module; empty without one."""
    short: ClassVar[re.Pattern[str]]
    failed: ClassVar[re.Pattern[str]]
    lost: ClassVar[re.Pattern[str]] = re.compile(r"(?!)")

    module: Any
    """The vendor's module of torch, once the runtime is open."""
    _kernels: Kernels

    @abstractmethod
    def bring(self) -> Any:
        """Import the vendor's packages and return the vendor's module of torch. Raises :class:`PlatformError`, with the
        remedy, if a package is missing or finds no device."""

    @abstractmethod
    def choose(self) -> Kernels:
        """Return the device's kernels. Called once, when the device is open."""

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
        """The device's number among the devices that this process sees."""
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
        """Empty the cache of torch's allocator, which keeps freed memory in blocks of the sizes that were asked for."""
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
        """Return whether the device still works for this process."""
        try:
            self.synchronize()
        except Exception:
            return False
        return True

    def recorded(self) -> Graphs | None:
        """Return the capture of graphs by the vendor's module; ``None`` without one."""
        if not self.graph_class or not hasattr(self.module, self.graph_class):
            return None
        return ModuleGraphs(self.module, self.graph_class)

    def profiler(self, folder: Path) -> AbstractContextManager[Any]:
        """Return a profiler whose trace TensorBoard and Perfetto read."""
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
    """Graphs of a vendor's module of torch: all share one pool of memory and one stream for captures.

    Warm-up and capture use the same stream: libraries keep handles and workspaces by stream, and objects made on first
    use (such as hipBLASLt's handle) must not be made during a capture. All graphs use one stream because sharing a pool
    requires that.
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
    """Import a vendor's package. Raises :class:`PlatformError`, with the remedy, for a missing or broken package."""
    try:
        return import_module(name)
    except ImportError as error:
        raise PlatformError(f"package '{name}' cannot be imported ({error}): {remedy}") from error


def has(name: str) -> bool:
    """Return whether a package is installed, without importing it."""
    with contextlib.suppress(ImportError, ValueError):
        return find_spec(name) is not None
    return False
