"""The device's workers: the product's own engines, which compute on this device.

A vendor whose hardware is a torch device needs none of these: there ``tensor.to("vendor:0")`` says it all, and the
platform keeps the engines that it inherits. Here torch computes on the processor, and what is the device's has to be
said.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from omni_actors.protocol.frames import Hello
from omni_actors.worker.device import runtime_of
from omni_actors.worker.engine import Engine, Outbox
from omni_actors.worker.engines.autoregressive import AutoregressiveEngine
from omni_actors.worker.engines.oneshot import GenerationEngine
from omni_sim.runtime import SimRuntime


class _OnSim(Engine):
    """What both have in common; an engine of the product is behind it in each class's order."""

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
