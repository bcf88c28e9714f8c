"""The engines of the device's workers: the built-in engines, with their steps computed on this device.

A vendor whose hardware is a torch device needs none of these classes: ``tensor.to("vendor:0")`` is enough, and the
platform keeps the engines that it inherits. Here torch computes on the processor, so the engines must mark the
operations of the device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from omni_actors.protocol.frames import Hello
from omni_actors.worker.device import runtime_of
from omni_actors.worker.engine import Engine, Outbox
from omni_actors.worker.engines.autoregressive import AutoregressiveEngine
from omni_actors.worker.engines.diffusion import DiffusionEngine
from omni_actors.worker.engines.oneshot import GenerationEngine
from omni_sim.runtime import SimRuntime


class _OnSim(Engine):
    """The common base of the engines. In each subclass a built-in engine follows in the method resolution order."""

    def __init__(self, hello: Hello) -> None:
        super().__init__(hello)
        runtime = runtime_of(hello)
        assert isinstance(runtime, SimRuntime)
        self._sim = runtime
        runtime.plan_faults(hello.incarnation)

    def load(self, progress: Callable[[str, float | None], None]) -> dict[str, Any]:
        with self._sim.loading():
            return super().load(progress)  # type: ignore[safe-super]

    def step(self, out: Outbox) -> bool:
        with self._sim.step():
            return super().step(out)  # type: ignore[safe-super]

    def counters(self) -> dict[str, float]:
        return super().counters() | self._sim.counters()


class SimAutoregressiveEngine(_OnSim, AutoregressiveEngine):
    """Continuous batching on the simulated device."""


class SimGenerationEngine(_OnSim, GenerationEngine):
    """One-shot models on the simulated device."""


class SimDiffusionEngine(_OnSim, DiffusionEngine):
    """Pictures, step by step, on the simulated device."""
