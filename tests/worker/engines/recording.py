"""Recordings on the processor, after CUDA graphs: what a step computes is taken down operation by operation, and done
again on the same memory, whatever the step's Python would say by then.

As there, a recording holds the operations, not what the code around them knew: a number that a step bakes in stays what
it was. As there, a step cannot be recorded that waits for a result of the device (to read a number, or to size a tensor
by one), or that brings something from the host.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from omni_actors.platforms.cpu import CpuPlatform
from omni_actors.platforms.cpu.kernels import KERNELS
from omni_actors.platforms.cpu.runtime import CpuRuntime
from omni_actors.platforms.runtime import Graphs, T
from omni_actors.platforms.runtime.kernels import Kernels, grouped_experts, paged_decode

WAITING = ("aten::_local_scalar_dense", "aten::nonzero", "aten::item", "aten::equal", "aten::unique", "aten::bincount")
"""Operations whose result a device is waited for."""

HOST = {
    "torch": ("tensor", "as_tensor", "from_numpy", "frombuffer"),
    "Tensor": ("tolist", "numpy", "item", "cpu", "__bool__", "__int__", "__float__", "__array__"),
}
"""What goes between a device and the host."""


class TapeGraphs(Graphs):
    """``sizes`` are those of the steps. ``replays`` counts."""

    def __init__(self, *sizes: int) -> None:
        self.sizes = sizes
        self.captures = 0
        self.replays = 0

    def capture(self, run: Callable[[], T]) -> Callable[[], T]:
        run()  # warm up
        with Strict(), Tape() as tape:
            result = run()
        self.captures += 1

        def replay() -> T:
            self.replays += 1
            tape.play()
            return result

        return replay


class Strict(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self._forbidden = {getattr(torch, name) for name in HOST["torch"]}
        self._forbidden |= {getattr(torch.Tensor, name) for name in HOST["Tensor"]}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in self._forbidden:
            raise RuntimeError(f"operation not permitted while recording: {func}")
        return func(*args, **(kwargs or {}))


class Tape(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self._calls: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.name().startswith(WAITING):
            raise RuntimeError(f"operation not permitted while recording: {func.name()}")
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        given = {it.untyped_storage().data_ptr() for it in tree_flatten((args, kwargs))[0] if _is_tensor(it)}
        made = [it for it in tree_flatten(result)[0] if _is_tensor(it)]
        # A view, or what is written in place, is where it was: doing it again is enough, or nothing need be done.
        fresh = [it.untyped_storage().data_ptr() not in given for it in made]
        if any(fresh) or func._schema.is_mutable:
            self._calls.append((func, args, kwargs, [it if new else None for it, new in zip(made, fresh, strict=True)]))
        return result

    @torch.inference_mode()
    def play(self) -> None:
        for func, args, kwargs, kept in self._calls:
            made = [it for it in tree_flatten(func(*args, **kwargs))[0] if _is_tensor(it)]
            for place, value in zip(kept, made, strict=True):
                if place is not None:
                    place.copy_(value)


def _is_tensor(it: Any) -> bool:
    return isinstance(it, torch.Tensor)


class RecordingPlatform(CpuPlatform):
    """The processor, with steps that are recorded."""

    contract = 1
    name = "recording"
    runtime = "tests.worker.engines.recording:RecordingRuntime"


class RecordingRuntime(CpuRuntime):
    @property
    def kernels(self) -> Kernels:
        """Experts' products wait for nothing."""
        return replace(KERNELS, experts=grouped_experts)

    def graphs(self) -> TapeGraphs:
        return TapeGraphs(1, 2, 4, 8)


class PagedRuntime(RecordingRuntime):
    """One whose attention reads the cache by tables of blocks."""

    @property
    def kernels(self) -> Kernels:
        return replace(KERNELS, paged_decode=lambda layout: paged_decode, prompt_attention=lambda layout: prompt)


class PagedPlatform(RecordingPlatform):
    contract = 1
    name = "paged"
    runtime = "tests.worker.engines.recording:PagedRuntime"


def prompt(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float, window: int | None
) -> torch.Tensor:
    """:class:`~omni_actors.platforms.runtime.kernels.PromptAttention` without any library's."""
    heads, count, length = query.shape[1], query.shape[0], keys.shape[1]
    keys, values = (it.repeat_interleave(heads // len(it), 0) for it in (keys, values))
    last = torch.arange(length - count, length)[:, None]
    place = torch.arange(length)
    hidden = place > last
    if window is not None:
        hidden |= place <= last - window
    scores = torch.matmul(query.transpose(0, 1), keys.transpose(1, 2)) * scale
    return torch.matmul(scores.masked_fill(hidden, -torch.inf).softmax(-1), values).transpose(0, 1)
