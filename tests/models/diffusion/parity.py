"""The comparison of a family with diffusers' own pipeline: predictions of every step, and final latents.

The reference is the pipeline object of diffusers, called as its users call it. Its scheduler and its callback are
recorded. The family is driven by the real :class:`DiffusionEngine`; what the adapter predicts and the latents after
each step are recorded.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import torch
from tests.models.diffusion.orders import Order, Picture

from omni_actors.connectors.payload import Payload
from omni_actors.protocol.errors import ErrorInfo
from omni_actors.protocol.frames import PROTOCOL_VERSION, Hello
from omni_actors.testing.driving import Job, drive
from omni_actors.testing.outcome import Outcome
from omni_actors.worker.engine import Outbox, Work
from omni_actors.worker.engines.diffusion import DiffusionEngine
from omni_actors.worker.engines.diffusion.cursor import Cursor

TOLERANCE = 1e-4
"""Allowed difference in float32, relative to the largest number of the reference."""


@dataclass(frozen=True)
class Case:
    """A family in one of its modes, and the call of diffusers' pipeline that makes the same pictures."""

    family: str
    mode: str
    checkpoint: str
    """The tiny checkpoint's name in ``omni_actors.models.tiny.FAMILIES``."""
    adapter: str
    pipeline: str
    """The class in diffusers."""
    arguments: Callable[[Order], dict[str, Any]]
    """The arguments of the pipeline's call for an order."""
    orders: tuple[Order, ...]
    """Eight orders. The first is the one that the others join and leave."""
    step_batched: bool = True
    rows: float = 4.0
    """The least rows per forward among the eight."""
    negative: bool = True
    """Whether guidance takes a second branch."""
    further: bool = False
    """Whether the case is a further mode of an adapter: then it is compared among others only, without faults."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the stage."""
    given: Mapping[str, Callable[[Path], Any]] = field(default_factory=dict)
    """Components of the reference that are not loaded by diffusers, from the folder."""
    output: str = "latent"
    """The reference's ``output_type``."""
    scaled: tuple[str, int] | None = None
    """A module of diffusers whose ``calculate_dimensions`` shall scale pictures to so many pixels, for its own constant
    is more than a test can compute."""

    @property
    def name(self) -> str:
        """The case's name in a test's id."""
        return re.sub(r"[^a-z0-9]+", "-", f"{self.checkpoint} {self.mode}").strip("-")


@dataclass
class Trace:
    """The course of one picture."""

    predictions: list[torch.Tensor] = field(default_factory=list)
    latents: list[torch.Tensor] = field(default_factory=list)
    error: ErrorInfo | None = None
    outcome: Outcome | None = None

    def differs(self, reference: Trace, *, whole: bool = True) -> float:
        """Return the largest difference to a reference, relative to its full scale: infinite for a picture that failed
        or has other steps. A picture that was aborted is not ``whole``."""
        if self.error is not None:
            return float("inf")
        if whole and not len(self.predictions) == len(self.latents) == len(reference.predictions):
            return float("inf")
        pairs = [*zip(self.predictions, reference.predictions, strict=False)]
        pairs += [*zip(self.latents, reference.latents, strict=False)]
        return max((difference(mine, theirs) for mine, theirs in pairs), default=0.0)


def difference(mine: torch.Tensor, theirs: torch.Tensor) -> float:
    """Return the largest difference of two tensors, relative to the second one's full scale."""
    if mine.shape != theirs.shape:
        return float("inf")
    found = float((mine.float() - theirs.float()).abs().max() / theirs.abs().max().clamp(min=1e-12))
    return found if np.isfinite(found) else float("inf")


class Reference:
    """The pipeline of diffusers."""

    def __init__(self, case: Case, folder: Path) -> None:
        self._case = case
        diffusers.utils.logging.set_verbosity_error()
        diffusers.utils.logging.disable_progress_bar()
        given = {name: make(folder) for name, make in case.given.items()}
        self._pipe = getattr(diffusers, case.pipeline).from_pretrained(str(folder), local_files_only=True, **given)
        self._pipe.set_progress_bar_config(disable=True)
        self._known: dict[int, Trace] = {}

    def trace(self, order: Order) -> Trace:
        """Return the course of an order's picture, computed once."""
        if id(order) not in self._known:
            self._known[id(order)] = self._made(order)
        return self._known[id(order)]

    def _made(self, order: Order) -> Trace:
        trace = Trace()
        pipe = self._pipe
        scheduler = type(pipe.scheduler).from_config(pipe.scheduler.config)
        step = scheduler.step

        @functools.wraps(step)
        def recorded(model_output: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            trace.predictions.append(model_output.detach().clone())
            return step(model_output, *args, **kwargs)

        def at_end(pipe: Any, index: int, timestep: Any, values: dict[str, Any]) -> dict[str, Any]:
            trace.latents.append(values["latents"].detach().clone())
            return {}

        def after_step(index: int, timestep: Any, latents: torch.Tensor) -> None:
            trace.latents.append(latents.detach().clone())

        newer = "callback_on_step_end" in inspect.signature(pipe.__call__).parameters
        callback: dict[str, Any] = {"callback_on_step_end": at_end} if newer else {"callback": after_step}
        scheduler.step = recorded
        pipe.scheduler = scheduler
        with _scaled(self._case):
            pipe(
                **self._case.arguments(order),
                generator=torch.Generator("cpu").manual_seed(order.seed),
                output_type=self._case.output,
                **callback,
            )
        return trace


@contextlib.contextmanager
def _scaled(case: Case) -> Iterator[None]:
    """Let diffusers scale pictures to as many pixels as the case says."""
    if case.scaled is None:
        yield
        return
    module, pixels = importlib.import_module(case.scaled[0]), case.scaled[1]
    own = module.calculate_dimensions
    setattr(module, "calculate_dimensions", lambda area, ratio: own(pixels, ratio))  # noqa: B010
    try:
        yield
    finally:
        setattr(module, "calculate_dimensions", own)  # noqa: B010


class Ticks:
    """A clock that moves by one at each look, so that the engine's order is the same on every machine."""

    def __init__(self) -> None:
        self._now = 0.0

    def __call__(self) -> float:
        self._now += 1.0
        return self._now


def hello(adapter: str, folder: Path, **options: Any) -> Hello:
    """Return the Hello of a stage ``image`` on the CPU."""
    return Hello(
        version=PROTOCOL_VERSION,
        stage="image",
        replica=0,
        incarnation=1,
        engine="diffusion",
        adapter=adapter,
        model=str(folder),
        dtype="float32",
        device="cpu",
        options=options,
    )


def picture_payload(picture: Picture, index: int) -> Payload:
    """Return a client's picture as the media process sends it."""
    return Payload("image", {"index": index, "length": picture.shape[0]}, {"pixels": np.ascontiguousarray(picture)})


class Driven:
    """A family's adapter in the real engine, with a record of what it predicts."""

    def __init__(self, case: Case, folder: Path, **options: Any) -> None:
        torch.set_num_threads(1)
        self.engine = DiffusionEngine(hello(case.adapter, folder, **case.options, **options), clock=Ticks())
        self.facts = self.engine.load(lambda text, fraction: None)
        self.adapter: Any = self.engine._adapter
        self.batches: list[list[tuple[int, int]]] = []
        """The (key, index) of the cursors of each forward."""
        self.calls: list[int] = []
        """The rows of each call of the denoiser itself."""
        self._traces: dict[tuple[int, int], Trace] = {}
        self._leaving: dict[int, tuple[Job, int]] = {}
        self._steps = 0
        self._record()

    def _record(self) -> None:
        adapter = self.adapter
        predict, advance = adapter.predict, adapter.advance

        def predicting(cursors: Sequence[Cursor]) -> Sequence[Any]:
            self.batches.append([(cursor.key, cursor.index) for cursor in cursors])
            return predict(cursors)  # type: ignore[no-any-return]

        def advancing(cursor: Cursor, prediction: Any) -> None:
            trace = self._traces.setdefault((cursor.key, cursor.index), Trace())
            predicted = getattr(prediction, "prediction", prediction)  # of the generic adapter: a whole step
            trace.predictions.append(predicted.detach().clone())
            advance(cursor, prediction)
            trace.latents.append(cursor.latents.detach().clone())

        def stepping(out: Outbox) -> bool:
            ran = step(out)
            self._steps += 1
            for key, (job, after) in self._leaving.items():
                if job.abort_at is None and len(self._traces.get((key, 0), Trace()).latents) >= after:
                    job.abort_at = self._steps
            return ran

        step = self.engine.step
        setattr(self.engine, "step", stepping)  # noqa: B010
        adapter.predict, adapter.advance = predicting, advancing
        adapter.model.register_forward_pre_hook(self._called, with_kwargs=True)

    def _called(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        first = args[0] if args else next(kwargs[name] for name in ("hidden_states", "sample", "x") if name in kwargs)
        self.calls.append(len(first))

    @property
    def rows_per_forward(self) -> float:
        """The mean number of rows of the denoiser's calls since :meth:`run` began."""
        return sum(self.calls) / max(1, len(self.calls))

    def run(
        self, orders: Sequence[Order], chance: random.Random | None = None, leave: Sequence[int] = ()
    ) -> list[Trace]:
        """Make the pictures in the engine, and return the course of each.

        Args:
            orders: The pictures, each of a request of its own.
            chance: Mixes arrivals and steps; without it all arrive before the first step.
            leave: Numbers of orders that are aborted after a random number of their steps.
        """
        self._traces.clear()
        self.batches.clear()
        self.calls.clear()
        jobs = []
        for key, order in enumerate(orders):
            ports = frozenset({"pictures"} if order.pictures else ())
            work = Work(key, f"order-{key}", {"image": order.section()}, ports, routed=True)
            payloads = [picture_payload(picture, index) for index, picture in enumerate(order.pictures)]
            jobs.append(Job(work, {"pictures": payloads} if order.pictures else {}))
        self._leaving = {key: (jobs[key], (chance or random).randrange(1, orders[key].steps - 1)) for key in leave}
        self._steps = 0
        outcomes = drive(self.engine, jobs, order=chance)
        traces = [self._traces.get((key, 0), Trace()) for key in range(len(orders))]
        for key, trace in enumerate(traces):
            trace.outcome = outcomes[key]
            trace.error = outcomes[key].error
        return traces


# ---- planted faults


def neighbours_timestep(driven: Driven) -> Iterator[None]:
    """Give each row of a forward the timestep of another cursor's row."""
    adapter, forward = driven.adapter, driven.adapter.forward
    from omni_actors.models.diffusion.rows import Row

    class Planted(Row):
        @property
        def timestep(self) -> Any:
            own = [row.cursor for row in rows_now]
            others = [cursor for cursor in own if cursor is not self.cursor] or [self.cursor]
            other = others[0]
            return other.timesteps[other.step]

    rows_now: list[Row] = []

    def planted(rows: Sequence[Row]) -> Any:
        rows_now[:] = rows
        return forward([Planted(row.cursor, row.embeddings, row.branch) for row in rows])

    adapter.forward = planted
    yield
    adapter.forward = forward


def shared_scheduler(driven: Driven) -> Iterator[None]:
    """Let all cursors of a number of steps share one scheduler object."""
    adapter, begin = driven.adapter, driven.adapter.begin
    shared: list[Any] = []

    def planted(cursor: Cursor) -> None:
        begin(cursor)
        shared.append(cursor.scheduler)
        cursor.scheduler = shared[0]

    adapter.begin = planted
    yield
    adapter.begin = begin


def swapped_branches(driven: Driven) -> Iterator[None]:
    """Swap the output of the negative and the positive branch."""
    adapter, guide = driven.adapter, driven.adapter.guide

    def planted(cursor: Cursor, branches: Any) -> torch.Tensor:
        turned = torch.flip(branches, [0]) if isinstance(branches, torch.Tensor) else list(branches)[::-1]
        guided: torch.Tensor = guide(cursor, turned)
        return guided

    adapter.guide = planted
    yield
    adapter.guide = guide


FAULTS: dict[str, Callable[[Driven], Iterator[None]]] = {
    "neighbours-timestep": neighbours_timestep,
    "shared-scheduler": shared_scheduler,
    "swapped-branches": swapped_branches,
}
"""Mistakes of an adapter that a comparison must find, by name."""
