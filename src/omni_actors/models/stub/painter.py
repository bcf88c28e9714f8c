"""The engine of ``stub-image``: deterministic, quick to start, and with faults on request.

A prompt may hold a fault as a word ``!fault:stage``: ``refuse`` (400), ``fail`` (500), ``crash`` (the worker kills
itself on reaching the request), ``stall`` (the request never ends).
"""

from __future__ import annotations

import os
import signal
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from omni_actors.connectors.payload import Payload
from omni_actors.models.stub.engines import faults_of
from omni_actors.models.stub.image import MULTIPLE, SIDE
from omni_actors.protocol.errors import invalid_request, stage_failed
from omni_actors.protocol.frames import Hello
from omni_actors.protocol.params import ImageGeneration
from omni_actors.protocol.request import StepProgress, Usage
from omni_actors.worker.engine import Engine, Outbox, Work

Pixels = npt.NDArray[np.uint8]

GUIDANCE = 4.0
"""The stub's guidance scale, which changes nothing."""


def painted(prompt: str, seed: int, width: int, height: int, alpha: bool = False) -> Pixels:
    """Return the finished picture of a prompt and a seed: a gradient in the prompt's colour and a pattern of the
    seed's; with ``alpha`` it fades to the right."""
    colour = zlib.crc32(prompt.encode())
    rows = (np.arange(height) * (1 + seed % 7)).astype(np.uint8)
    columns = (np.arange(width) * (1 + seed // 7 % 5)).astype(np.uint8)
    picture = np.empty((height, width, 4 if alpha else 3), np.uint8)
    for channel in range(3):
        np.add(rows[:, None], columns + np.uint8(colour >> 8 * channel & 255), out=picture[..., channel])
    if alpha:
        picture[..., 3] = np.arange(width) * 255 // max(1, width - 1)
    return picture


def unfinished(picture: Pixels, seed: int, step: int, steps: int) -> Pixels:
    """Return a picture as it looks after some of its steps: mixed with the noise of its seed."""
    noise = np.random.default_rng(seed).integers(0, 256, picture.shape, np.uint8)
    share = 256 * step // steps
    mixed = (picture.astype(np.uint16) * share + noise.astype(np.uint16) * (256 - share)) >> 8
    return mixed.astype(np.uint8)


def edited(picture: Pixels, inputs: list[Pixels], mask: bool) -> Pixels:
    """Return the edit of the first input: the painted picture, where the mask (the last input) is transparent; outside
    of it, and everywhere without a mask, the input's pixels stay, but their colours are inverted without a mask."""
    height, width, _ = picture.shape
    base = _fitted(inputs[0], height, width)[..., :3]
    if not mask:
        return ~base
    where = _fitted(inputs[-1], height, width)[..., 3:] == 0
    found: Pixels = np.where(where, picture[..., :3], base)
    return found


def _fitted(picture: Pixels, height: int, width: int) -> Pixels:
    rows = np.arange(height) * len(picture) // height
    columns = np.arange(width) * picture.shape[1] // width
    found: Pixels = picture[rows[:, None], columns]
    return found


@dataclass(slots=True)
class _Held:
    """A request: the steps that are done of each of its ``n`` pictures."""

    work: Work
    image: ImageGeneration
    faults: set[str]
    steps: int
    done: list[int]
    ports: set[str]
    inputs: list[Pixels] = field(default_factory=list)
    sent: int = 0

    @property
    def due(self) -> bool:
        return "stall" not in self.faults and not self.ports


class Painter(Engine):
    """An engine that makes one step of every picture of every request in a step."""

    def __init__(self, hello: Hello) -> None:
        super().__init__(hello)
        self._options = hello.options
        self._held: dict[int, _Held] = {}
        self._steps = 0

    def load(self, progress: Callable[[str, float | None], None]) -> dict[str, Any]:
        progress("loading nothing", 0.0)
        time.sleep(float(self._options.get("load_s", 0.0)))
        return {
            "width": SIDE,
            "height": SIDE,
            "multiple": MULTIPLE,
            "max_pixels": self._options.get("max_pixels", 4096 * 4096),
            "steps": self._options.get("steps", 8),
            "max_steps": self._options.get("max_steps", 1000),
            "alpha": True,
            "guidance": GUIDANCE,
            "step_batched": True,
        }

    def admit(self, work: Work) -> None:
        image: ImageGeneration = work.params["image"]
        faults = faults_of(image.prompt or "", self.hello.stage)
        if "refuse" in faults:
            raise invalid_request("asked to refuse", param="prompt")
        width, height = image.width or SIDE, image.height or SIDE
        if min(width, height) < 1 or width % MULTIPLE or height % MULTIPLE:
            raise invalid_request(f"Width and height must divide by {MULTIPLE}.", "size")
        if width * height > self._options.get("max_pixels", 4096 * 4096):
            raise invalid_request("The picture has too many pixels.", "size")
        if image.layers is not None:
            raise invalid_request("This model makes pictures of one layer.", "layers")
        steps = image.steps or self._options.get("steps", 8)
        if steps > self._options.get("max_steps", 1000):
            raise invalid_request("The picture has too many steps.", "steps")
        self._held[work.key] = _Held(work, image, faults, steps, [0] * image.n, set(work.ports))

    def feed(self, key: int, port: str, payload: Payload | None, end: bool) -> bool:
        held = self._held.get(key)
        if held is not None:
            if payload is not None:
                held.inputs.append(payload.tensors["pixels"].copy())
            if end:
                held.ports.discard(port)
        return True

    def abort(self, key: int) -> None:
        self._held.pop(key, None)

    @property
    def runnable(self) -> bool:
        return any(held.due for held in self._held.values())

    def step(self, out: Outbox) -> bool:
        if (pause := float(self._options.get("step_s", 0.0))) > 0:
            time.sleep(pause)
        ran = False
        for key, held in list(self._held.items()):
            if not held.due:
                continue
            if "crash" in held.faults:
                os.kill(os.getpid(), signal.SIGKILL)
            if "fail" in held.faults:
                self.abort(key)
                out.fail(key, stage_failed(self.hello.stage, "asked to fail").info)
                ran = True
                continue
            for index in range(held.image.n):
                ran |= self._advance(key, held, index, out)
            if held.sent == held.image.n:
                self.abort(key)
                out.finish(key, Usage(images=held.image.n, steps=held.image.n * held.steps))
        return ran

    def _advance(self, key: int, held: _Held, index: int, out: Outbox) -> bool:
        """Make the next step of a picture, or send the picture, which needs a credit."""
        if held.done[index] > held.steps:
            return False
        if held.done[index] == held.steps:
            if not out.ready(key):
                return False
            self._send(key, held, index, out)
            held.done[index] += 1
            held.sent += 1
            return True
        held.done[index] += 1
        self._steps += 1
        done, every = held.done[index], held.image.previews
        if held.image.progress:
            out.progress(StepProgress(key, index, done, held.steps))
        if every and done % every == 0 and done < held.steps and out.ready(key):
            seed = self._seed(held, index)
            pixels = unfinished(self._picture(held, index), seed, done, held.steps)
            side = self._options.get("preview_side", 256)
            meta = {"index": index, "seed": seed, "preview": done, "side": side}
            out.emit(key, Payload("pixels", meta, {"pixels": pixels}))
        return True

    def _send(self, key: int, held: _Held, index: int, out: Outbox) -> None:
        pixels = self._picture(held, index)
        out.emit(key, Payload("pixels", {"index": index, "seed": self._seed(held, index)}, {"pixels": pixels}))

    @staticmethod
    def _seed(held: _Held, index: int) -> int:
        return (held.image.seed or 0) + index

    def _picture(self, held: _Held, index: int) -> Pixels:
        image = held.image
        alpha = image.background == "transparent"
        seed = self._seed(held, index)
        picture = painted(image.prompt or "", seed, image.width or SIDE, image.height or SIDE, alpha)
        return edited(picture, held.inputs, image.mask) if held.inputs else picture

    def counters(self) -> dict[str, float]:
        return {"running": len(self._held), "steps_total": self._steps}
