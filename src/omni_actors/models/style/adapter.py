"""Style transfer in the diffusion engine: an edit of one step, computed by onnxruntime."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from omni_actors.connectors.payload import Payload
from omni_actors.models.style.networks import STYLES, Networks, Numbers
from omni_actors.protocol.errors import invalid_request
from omni_actors.protocol.frames import Hello
from omni_actors.protocol.params import ImageGeneration
from omni_actors.worker.engine import Work
from omni_actors.worker.engines.diffusion.adapter import DiffusionAdapter
from omni_actors.worker.engines.diffusion.cursor import Cursor, Footprint

LEAST_SIDE = 32

_PIXEL_BYTES = 600
"""Memory of the first network for one pixel, at its peak: some 32 channels of floats in four layers at once."""

_NUMBER = re.compile(r"[0-9]+", re.ASCII)

_REFUSED = {
    "negative_prompt": "negative_prompt",
    "guidance": "guidance_scale",
    "true_guidance": "true_cfg_scale",
    "layers": "layers",
}
"""Fields that the model has no use for → the client's names for them."""


class Style(DiffusionAdapter):
    """The first picture of a request in a style: numbered styles that the prompt names, or the second picture's."""

    def __init__(self, hello: Hello) -> None:
        super().__init__(hello)
        self._max_pixels: int = hello.options.get("max_pixels") or 2048 * 2048
        self._networks: Networks

    def load(self, progress: Callable[[str, float | None], None]) -> dict[str, Any]:
        progress("loading the networks", None)
        self._networks = Networks(Path(self.hello.model or ""), self.hello.threads)
        progress("warming up", None)
        self.prove()
        return {"multiple": 1, "max_pixels": self._max_pixels, "steps": 1, "max_steps": 1, "step_batched": False}

    def prove(self) -> None:
        grey = np.full((64, 64, 3), 0.5, np.float32)
        made = self._networks.numbered(grey, styles_of("0"))
        made = self._networks.styled(made, self._networks.style_of(grey))
        if not np.isfinite(made).all():
            raise ValueError("the picture of the warm-up is not finite")

    # ---- a request

    def open(self, work: Work, image: ImageGeneration) -> Sequence[Cursor]:
        if not 1 <= image.pictures <= 2:
            message = "This model takes one picture, and perhaps a second one whose style the first one gets."
            raise invalid_request(message, "image")
        if image.pictures == 1 and not _NUMBER.search(image.prompt or ""):
            message = f"The prompt names a style from 0 to {STYLES - 1}, or several, unless a second picture has it."
            raise invalid_request(message, "prompt")
        if image.n != 1:
            raise invalid_request("This model draws nothing by chance: 'n' is 1.", "n")
        if image.steps not in (None, 1):
            raise invalid_request("This model makes one step.", "steps")
        for name, param in _REFUSED.items():
            if getattr(image, name) is not None:
                raise invalid_request(f"This model has no use for '{param}'.", param)
        if image.pictures == 1:
            styles_of(image.prompt or "")
        pixels = (image.width or 0) * (image.height or 0) or self._max_pixels
        footprint = Footprint(state=40 * pixels, step=_PIXEL_BYTES * pixels)
        return [Cursor(work, image, 0, image.seed or 0, image.width or 0, image.height or 0, 1, footprint)]

    def feed(self, cursors: Sequence[Cursor], port: str, payload: Payload | None, end: bool) -> None:
        super().feed(cursors, port, payload, end)
        if not end:
            return
        for cursor in cursors:
            height, width = _pixels(cursor, 0).shape[:2]
            if (cursor.image.width or width, cursor.image.height or height) != (width, height):
                message = f"An edit has the size of its picture, {width}x{height}."
                raise invalid_request(message, "size")
            if min(width, height) < LEAST_SIDE or width * height > self._max_pixels:
                message = (
                    f"The picture has {width}x{height} pixels; sides are at least {LEAST_SIDE} pixels, and all pixels "
                    f"at most {self._max_pixels:,}."
                )
                raise invalid_request(message, "image")
            cursor.width, cursor.height = width, height

    def encode_key(self, cursor: Cursor) -> Hashable:
        return id(cursor)

    def encode(self, cursors: Sequence[Cursor]) -> Iterator[Sequence[Any] | None]:
        """Find the style: shares of the numbered styles, or the vector of the second picture's style."""
        made = []
        for cursor in cursors:
            if cursor.image.pictures == 1:
                made.append(styles_of(cursor.image.prompt or ""))
                continue
            vector = self._networks.style_of(_numbers(cursor, 1))
            strength = _strength(cursor)
            if strength < 1:
                vector = strength * vector + (1 - strength) * self._networks.style_of(_numbers(cursor, 0))
            made.append(vector)
        yield made

    def begin(self, cursor: Cursor) -> None:
        cursor.latents = _numbers(cursor, 0)
        cursor.scheduler = "one step"

    def batch_key(self, cursor: Cursor) -> Hashable:
        return id(cursor)

    def predict(self, cursors: Sequence[Cursor]) -> Sequence[Any]:
        return [self._styled(cursor) for cursor in cursors]

    def _styled(self, cursor: Cursor) -> Numbers:
        picture: Numbers = cursor.latents
        if cursor.image.pictures == 2:
            return self._networks.styled(picture, cursor.conditioning)
        strength = _strength(cursor)
        return strength * self._networks.numbered(picture, cursor.conditioning) + (1 - strength) * picture

    def advance(self, cursor: Cursor, prediction: Any) -> None:
        cursor.latents = prediction

    def decode(self, cursors: Sequence[Cursor]) -> Iterator[Sequence[Any] | None]:
        made = []
        for cursor in cursors:
            pixels = (np.clip(cursor.latents, 0, 1) * 255 + 0.5).astype(np.uint8)
            if cursor.image.mask:
                kept = _pixels(cursor, -1)[..., 3:] > 0
                pixels = np.where(kept, _pixels(cursor, 0)[..., :3], pixels)
            made.append(pixels)
        yield made


def styles_of(prompt: str) -> Numbers:
    """Return the shares [26] of the styles that a prompt names by number, all alike.

    Raises:
        OmniError: 400 for a number that is no style's.

    >>> styles_of("style 3 and 12").nonzero()[0].tolist()
    [3, 12]
    """
    shares = np.zeros(STYLES, np.float32)
    for number in map(int, _NUMBER.findall(prompt)):
        if number >= STYLES:
            raise invalid_request(f"There is no style {number}; styles are 0 to {STYLES - 1}.", "prompt")
        shares[number] += 1
    return np.asarray(shares / shares.sum(), np.float32)


def _strength(cursor: Cursor) -> float:
    return 1.0 if cursor.image.strength is None else cursor.image.strength


def _pixels(cursor: Cursor, place: int) -> Any:
    """Return the pixels [height, width, 3 or 4] of one of the request's pictures."""
    (inputs,) = cursor.inputs.values()
    return inputs[place].tensors["pixels"]


def _numbers(cursor: Cursor, place: int) -> Numbers:
    """Return a picture of the request from 0 to 1, transparency on white."""
    pixels = np.asarray(_pixels(cursor, place), np.float32) / 255
    if pixels.shape[2] == 4:
        alpha = pixels[..., 3:]
        pixels = pixels[..., :3] * alpha + (1 - alpha)
    return np.ascontiguousarray(pixels)
