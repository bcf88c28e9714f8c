"""A diffusion model in numpy: every row of a forward is computed by itself, so pictures must agree bit for bit.

Its work takes time on a clock of its own and memory of its own books, so that tests can state both exactly.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from omni_actors.connectors.payload import Payload
from omni_actors.protocol.errors import invalid_request
from omni_actors.protocol.params import ImageGeneration
from omni_actors.worker.checks import TensorSpec
from omni_actors.worker.engine import Work
from omni_actors.worker.engines.diffusion.adapter import DiffusionAdapter
from omni_actors.worker.engines.diffusion.cursor import Cursor, Footprint

PATCH = 8
"""Pixels of a latent's side."""

Latents = np.ndarray[Any, np.dtype[np.float64]]


class Planted(RuntimeError):
    """What a planted fault raises. Its words are not for clients."""


@dataclass
class VirtualClock:
    """Seconds of virtual time."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


class ToyScheduler:
    """A multistep scheduler, which counts itself as those of diffusers do."""

    def __init__(self, steps: int) -> None:
        self.sigmas = np.linspace(1.0, 0.0, steps + 1)
        self.index = 0
        self.before: Latents | None = None

    def step(self, prediction: Latents, latents: Latents) -> Latents:
        slope = prediction if self.before is None else 1.5 * prediction - 0.5 * self.before
        moved: Latents = latents + (self.sigmas[self.index + 1] - self.sigmas[self.index]) * slope
        self.before = prediction
        self.index += 1
        return moved


@dataclass
class Costs:
    """Seconds of virtual time."""

    encode: float = 1.0
    forward: float = 0.6
    row: float = 0.1
    """For each row and each 64 latents of a picture."""
    decode: float = 1.0


@dataclass
class Plan:
    """What goes wrong, and how the work is cut."""

    faults: dict[int, str] = field(default_factory=dict)
    """Request → the method that raises for it (or ``nan``: its latents are not finite, ``wrong``: wrong pixels)."""
    fault: Callable[[], Exception] = Planted
    at_step: int = 0
    """The step from which ``predict``, ``advance`` and ``batch_key`` fail."""
    most: int = 1 << 30
    """Pictures of a forward or decoding that fit into memory."""
    broken: bool = False
    """Whether every forward raises, also that of the self-test."""
    encode_slices: int = 1
    decode_slices: int = 1
    together: bool = False
    """Whether several pictures share an encoding or decoding."""


class Toy(DiffusionAdapter):
    accelerated = True
    tensors = {
        "conditioning": {"prompt": TensorSpec("float64", (None,))},
        "latent": {"latents": TensorSpec("float64", (None, None))},
    }

    def load(self, progress: Callable[[str, float | None], None]) -> dict[str, Any]:
        self.clock = VirtualClock()
        self.costs = Costs()
        self.plan = Plan()
        self.units: list[tuple[str, tuple[tuple[int, int], ...]]] = []
        """Every unit of work: what, and the (request, picture) that it was done for."""
        self.trace: dict[tuple[int, int], list[bytes]] = {}
        """The latents of each picture, from the first draw on."""
        self.open_cursors: Counter[tuple[int, int]] = Counter()
        self.used = self.peak = 0
        self.events: list[str] = []
        progress("nothing to load", None)
        return {"width": 64, "height": 64, "multiple": PATCH, "max_pixels": 1 << 20, "steps": 4, "guidance": 1.0}

    # ---- books

    def _unit(self, what: str, cursors: Sequence[Cursor], seconds: float) -> None:
        self.clock.now += seconds
        self.units.append((what, tuple((it.key, it.index) for it in cursors)))

    def take(self, size: int) -> None:
        self.used += size
        self.peak = max(self.peak, self.used)

    def _fail_at(self, place: str, cursor: Cursor, step: bool = False) -> None:
        if self.plan.faults.get(cursor.key) == place and (not step or cursor.step >= self.plan.at_step):
            raise self.plan.fault()

    # ---- a request

    def open(self, work: Work, image: ImageGeneration) -> Sequence[Cursor]:
        if self.plan.faults.get(work.key) == "open":
            raise self.plan.fault()
        if image.prompt is None and not work.ports:
            raise invalid_request("A prompt is needed.", "prompt")
        width, height = image.width or 64, image.height or 64
        latents = (width // PATCH) * (height // PATCH)
        branches = 2 if (image.guidance or 0) > 1 else 1
        footprint = Footprint(state=10 * latents, encode=12 * latents, step=4 * branches * latents, decode=16 * latents)
        made = [
            Cursor(
                work,
                image,
                index,
                (image.seed or 0) + index,
                width,
                height,
                image.steps or 4,
                footprint,
                branches * latents,
            )
            for index in range(image.n)
        ]
        for cursor in made:
            self.open_cursors[work.key, cursor.index] += 1
        return made

    def feed(self, cursors: Sequence[Cursor], port: str, payload: Payload | None, end: bool) -> None:
        if self.plan.faults.get(cursors[0].key) == "feed":
            raise self.plan.fault()
        super().feed(cursors, port, payload, end)

    def encode_key(self, cursor: Cursor) -> Hashable:
        self._fail_at("encode_key", cursor)
        return "all" if self.plan.together else cursor

    def encode(self, cursors: Sequence[Cursor]) -> Iterator[Sequence[Any] | None]:
        size = sum(max(0, it.footprint.encode - it.footprint.state) for it in cursors)
        self.take(size)
        try:
            for part in range(self.plan.encode_slices):
                if part:
                    yield None
                self._unit("encode", [it for it in cursors if not it.over], self.costs.encode / self.plan.encode_slices)
                for cursor in cursors:
                    if not cursor.over:
                        self._fail_at("encode", cursor)
            yield [None if it.over else embedded(it.image) for it in cursors]
        finally:
            self.used -= size

    # ---- denoising

    def begin(self, cursor: Cursor) -> None:
        self._fail_at("begin", cursor)
        shape = (cursor.height // PATCH, cursor.width // PATCH)
        cursor.latents = np.random.default_rng(cursor.seed).standard_normal(shape)
        cursor.scheduler = ToyScheduler(cursor.steps)
        cursor.timesteps = cursor.scheduler.sigmas[:-1]
        cursor.state["size"] = cursor.footprint.state
        self.take(cursor.footprint.state)
        self.trace[cursor.key, cursor.index] = [cursor.latents.tobytes()]

    def batch_key(self, cursor: Cursor) -> Hashable:
        if self.plan.faults.get(cursor.key) == "unhashable" and cursor.step >= self.plan.at_step:
            unhashable: Any = [1]
            key: Hashable = unhashable
            return key
        self._fail_at("batch_key", cursor, step=True)
        shape: tuple[int, ...] = cursor.latents.shape
        return shape

    def rows(self, cursor: Cursor) -> int:
        self._fail_at("rows", cursor, step=True)
        return 2 if (cursor.image.guidance or 0) > 1 else 1

    def predict(self, cursors: Sequence[Cursor]) -> Sequence[Any]:
        rows = sum(map(self.rows, cursors))
        area = cursors[0].latents.size / 64
        self._unit("forward", cursors, self.costs.forward + self.costs.row * rows * area)
        if self.plan.broken or len(cursors) > self.plan.most:
            raise MemoryError if len(cursors) > self.plan.most else Planted
        assert len({it.latents.shape for it in cursors}) == 1
        size = sum(it.footprint.step for it in cursors)
        self.take(size)
        self.used -= size
        for cursor in cursors:
            self._fail_at("predict", cursor, step=True)
        predictions = [guided(it) for it in cursors]
        if any(self.plan.faults.get(it.key) == "short" for it in cursors):
            return predictions[:-1]
        for place, cursor in enumerate(cursors):
            if self.plan.faults.get(cursor.key) == "nan" and cursor.step >= self.plan.at_step:
                predictions[place] = np.full_like(predictions[place], np.nan)
        return predictions

    def advance(self, cursor: Cursor, prediction: Any) -> None:
        self._fail_at("advance", cursor, step=True)
        if cursor.image.cache and cursor.step % 2:
            cursor.skipped += 1
        cursor.latents = cursor.scheduler.step(prediction, cursor.latents)
        self.trace[cursor.key, cursor.index].append(cursor.latents.tobytes())

    def finite(self, cursor: Cursor) -> bool:
        return bool(np.isfinite(cursor.latents).all())

    # ---- pixels

    def preview(self, cursor: Cursor, prediction: Any) -> Any:
        self._fail_at("preview", cursor)
        return to_pixels(cursor.latents - cursor.scheduler.sigmas[cursor.step] * prediction, 1)

    def decode_key(self, cursor: Cursor) -> Hashable:
        self._fail_at("decode_key", cursor)
        return (cursor.width, cursor.height) if self.plan.together else cursor

    def decode(self, cursors: Sequence[Cursor]) -> Iterator[Sequence[Any] | None]:
        size = sum(it.footprint.decode for it in cursors)
        self.take(size)
        try:
            for part in range(self.plan.decode_slices):
                if part:
                    yield None
                self._unit("decode", [it for it in cursors if not it.over], self.costs.decode / self.plan.decode_slices)
                if len(cursors) > self.plan.most:
                    raise MemoryError
                for cursor in cursors:
                    if not cursor.over:
                        self._fail_at("decode", cursor)
            yield [None if it.over else self._pixels(it) for it in cursors]
        finally:
            self.used -= size

    def _pixels(self, cursor: Cursor) -> Any:
        if self.plan.faults.get(cursor.key) == "wrong":
            return np.zeros((2, 2), np.float32)
        layers = cursor.image.layers or 1
        made = [to_pixels(cursor.latents + layer, PATCH) for layer in range(layers)]
        return made if layers > 1 else made[0]

    # ---- stages of their own

    def conditioning_payload(self, cursor: Cursor) -> Payload:
        return Payload("conditioning", {}, {"prompt": np.array(cursor.conditioning)})

    def latent_payload(self, cursor: Cursor) -> Payload:
        return Payload("latent", {"index": cursor.index}, {"latents": cursor.latents})

    def restore(self, cursor: Cursor, payload: Payload) -> None:
        self._fail_at("restore", cursor)
        if payload.kind == "conditioning":
            cursor.conditioning = payload.tensors["prompt"]
        else:
            cursor.latents = payload.tensors["latents"]

    # ---- the rest

    def prove(self) -> None:
        self.events.append("prove")
        if self.plan.broken:
            raise Planted

    def close(self, cursor: Cursor) -> None:
        self.open_cursors[cursor.key, cursor.index] -= 1
        self.used -= cursor.state.get("size", 0)
        self._fail_at("close", cursor)


def embedded(image: ImageGeneration) -> Latents:
    """The embedding of a prompt, and behind it that of the negative prompt."""
    texts = (image.prompt or "", image.negative_prompt or "")
    return np.array([zlib.crc32(text.encode()) % 1000 / 1000 for text in texts])


def guided(cursor: Cursor) -> Latents:
    sigma = cursor.timesteps[cursor.step]
    positive, negative = (
        np.tanh(cursor.latents * (1 + sigma)) + np.sin(3 * cursor.latents + 7 * word) for word in cursor.conditioning
    )
    guidance = cursor.image.guidance or 0
    found: Latents = negative + guidance * (positive - negative) if guidance > 1 else positive
    return found


def to_pixels(latents: Latents, scale: int) -> Any:
    grey = (np.clip(np.nan_to_num(latents) * 0.25 + 0.5, 0, 1) * 255).round().astype(np.uint8)
    return np.repeat(np.repeat(grey, scale, 0), scale, 1)[:, :, None]
