"""Drives a diffusion engine with the toy model inside the test's own process."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from tests.worker.engines.diffusion.toy import Toy, VirtualClock

from omni_actors.connectors.payload import Payload
from omni_actors.protocol.frames import PROTOCOL_VERSION, Hello
from omni_actors.protocol.params import ImageGeneration
from omni_actors.protocol.request import StepProgress, Usage
from omni_actors.testing.driving import Box
from omni_actors.worker.engine import Work
from omni_actors.worker.engines.diffusion import DiffusionEngine

MAX_STEPS = 20_000


def hello(parts: str = "", **options: Any) -> Hello:
    given = {"memory_bytes": 1 << 40, **options, **({"parts": parts} if parts else {})}
    return Hello(
        version=PROTOCOL_VERSION,
        stage="image",
        replica=0,
        incarnation=1,
        engine="omni_actors.worker.engines.diffusion:DiffusionEngine",
        adapter="tests.worker.engines.diffusion.toy:Toy",
        options=given,
    )


class Outbox(Box):
    """Keeps everything. Requests in ``blocked`` have no credit; those in ``credits`` have as many as are left there."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[StepProgress] = []
        self.blocked: set[int] = set()
        self.left: dict[int, int] = {}
        self.ended: list[int] = []

    def ready(self, key: int) -> bool:
        return key not in self.blocked and self.left.get(key, 1) > 0

    def emit(self, key: int, payload: Payload) -> None:
        super().emit(key, payload)
        if key in self.left:
            self.left[key] -= 1

    def progress(self, progress: StepProgress) -> None:
        super().progress(progress)
        self.told.append(progress)

    def finish(self, key: int, usage: Usage) -> None:
        super().finish(key, usage)
        self.ended.append(key)


class Bench:
    """An engine with the toy model, its outbox, and the virtual time in which both work."""

    def __init__(self, parts: str = "", **options: Any) -> None:
        self.clock = VirtualClock()
        self.engine = DiffusionEngine(hello(parts, **options), self.clock)
        self.engine.load(lambda text, fraction: None)
        adapter = self.engine._adapter
        assert isinstance(adapter, Toy)
        self.toy = adapter
        self.toy.clock = self.clock
        self.out = Outbox()
        self.ends: dict[int, float] = {}

    # ---- requests

    def admit(
        self,
        key: int,
        *,
        ports: Iterable[str] = (),
        priority: int = 0,
        deadline_s: float | None = None,
        **image: Any,
    ) -> None:
        section = ImageGeneration(**{"prompt": f"a picture {key}", "seed": 100 * key, **image})
        self.out.admit(key)
        self.engine.admit(
            Work(
                key,
                f"r{key}",
                {"image": section},
                frozenset(ports),
                routed=True,
                priority=priority,
                deadline_s=deadline_s,
            )
        )

    def abort(self, key: int) -> None:
        self.engine.abort(key)
        self.out.over.add(key)

    # ---- work

    def step(self) -> bool:
        over = len(self.out.over)
        moved = self.engine.step(self.out)
        if len(self.out.over) > over:
            for key in self.out.over:
                self.ends.setdefault(key, self.clock.now)
        return moved

    def run(self, until: Callable[[], bool] = lambda: False) -> None:
        """Step until nothing is left, or until something holds."""
        for _ in range(MAX_STEPS):
            if until() or not self.engine.runnable:
                return
            assert self.step(), "the engine is runnable, and its step does nothing"
        raise AssertionError("the requests do not end")

    def steps_of(self, key: int) -> int:
        """The denoising steps that a request has had."""
        return sum(what == "forward" and any(k == key for k, _ in shared) for what, shared in self.toy.units)

    # ---- what came out

    def pictures(self, key: int) -> dict[int, np.ndarray[Any, Any]]:
        return {it.meta["index"]: it.tensors["pixels"] for it in self.payloads(key) if "preview" not in it.meta}

    def previews(self, key: int) -> list[Payload]:
        return [it for it in self.payloads(key) if "preview" in it.meta]

    def payloads(self, key: int) -> list[Payload]:
        return self.out.outcomes[key].payloads

    def error(self, key: int) -> Any:
        return self.out.outcomes[key].error

    def counters(self) -> dict[str, float]:
        return self.engine.counters()

    def check_empty(self) -> None:
        """Nothing is left of any request."""
        counters = self.counters()
        assert (counters["requests"], counters["cursors"], counters["memory_bytes"]) == (0, 0, 0)
        assert self.toy.used == 0
        assert set(self.toy.open_cursors.values()) <= {0}
        assert not self.engine.runnable
        table = self.engine._table
        assert not table.active
        assert not table.fairness._accounts
        assert table.memory._busy == 0
        assert not self.engine._runner._of
        assert not self.engine._runner._alone
        assert not self.engine._turns._steps


def alone(key: int, *, options: dict[str, Any] | None = None, **image: Any) -> Bench:
    """Run one request by itself."""
    bench = Bench(**(options or {}))
    bench.admit(key, **image)
    bench.run()
    return bench


def check_alone(bench: Bench, key: int, **image: Any) -> None:
    """A request is, bit for bit, what it is alone: latents of every step, and pixels."""
    reference = alone(key, **image)
    assert reference.error(key) is None
    assert bench.error(key) is None
    for index in range(image.get("n", 1)):
        assert bench.toy.trace[key, index] == reference.toy.trace[key, index]
    mine, theirs = bench.pictures(key), reference.pictures(key)
    assert mine.keys() == theirs.keys()
    for index, pixels in theirs.items():
        assert np.array_equal(mine[index], pixels)


def sharing(bench: Bench) -> dict[str, list[int]]:
    """How many pictures shared each unit of work, by kind."""
    found: dict[str, list[int]] = defaultdict(list)
    for what, shared in bench.toy.units:
        found[what].append(len(shared))
    return found
