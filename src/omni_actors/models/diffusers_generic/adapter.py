"""The adapter of any diffusers pipeline: request by request.

Each picture is one call of the pipeline's own ``__call__``. The call stops after each step, so that other requests take
turns with it, an abort ends it within a step, and previews can leave. Rows of different pictures never share a forward.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import torch

from omni_actors.connectors.payload import Payload
from omni_actors.models.diffusers_generic.arguments import MASK, PICTURES, Signature
from omni_actors.models.diffusers_generic.calls import PipelineCall, Returned, Scheduled, Stepped
from omni_actors.models.diffusion.components import load_pipeline
from omni_actors.models.diffusion.editing import PORT, check_picture, mask_of, picture_of
from omni_actors.models.diffusion.pixels import Pixels, shrunk, to_pixels
from omni_actors.models.diffusion.sizes import check_size
from omni_actors.pipelines.weights.diffusers_folder import class_of
from omni_actors.protocol.errors import OmniError, invalid_request
from omni_actors.protocol.frames import Hello
from omni_actors.protocol.options import filled
from omni_actors.protocol.params import ImageGeneration
from omni_actors.worker.engine import Work
from omni_actors.worker.engines.diffusion.adapter import DiffusionAdapter
from omni_actors.worker.engines.diffusion.cursor import Cursor, Footprint
from omni_actors.worker.engines.diffusion.options import OPTIONS

SIDE = 1024
"""Width and height in pixels of a picture, for estimates, where nothing says what the pipeline's own size is."""


class GenericDiffusers(DiffusionAdapter):
    """Any pipeline of diffusers that makes pictures from a prompt."""

    def __init__(self, hello: Hello) -> None:
        super().__init__(hello)
        self.options: Mapping[str, Any] = filled(OPTIONS, hello.options)
        self.dtype: torch.dtype = getattr(torch, hello.dtype)
        self.device = torch.device(hello.device)
        self.pipe: Any
        self._signature: Signature

    def load(self, progress: Callable[[str, float | None], None]) -> dict[str, Any]:
        progress("loading the weights", None)
        name = class_of(Path(self.hello.model or ""))
        self.pipe = load_pipeline(self.hello.model or "", name, self.dtype, self.device, lambda component: True)
        self._signature = Signature(self.pipe)
        progress("warming up", None)
        self.prove()
        width, height = self.size
        return {
            "width": width,
            "height": height,
            "multiple": self.multiple,
            "max_pixels": self.max_pixels,
            "steps": self.steps,
            "guidance": self.options["guidance"] or self._signature.default("guidance_scale"),
            "step_batched": False,
            "edits": self._signature.takes(PICTURES),
            "masks": self._signature.takes(MASK),
        }

    @property
    def model(self) -> Any:
        """The component that denoises, of pipelines that name it as usual."""
        return getattr(self.pipe, "transformer", None) or getattr(self.pipe, "unet", None)

    @property
    def steps(self) -> int:
        """The steps of a request that names none."""
        own = self._signature.default("num_inference_steps")
        return int(self.options["steps"] or own or 50)

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of a picture whose size the client leaves open, as far as the components say so."""
        if self.options["size"] is not None:
            return self.options["size"], self.options["size"]
        sample = getattr(self.pipe, "default_sample_size", None)
        sample = sample or getattr(getattr(self.model, "config", None), "sample_size", None)
        side = sample * self._scale if isinstance(sample, int) else SIDE
        return side, side

    @property
    def _scale(self) -> int:
        return int(getattr(self.pipe, "vae_scale_factor", 8))

    @property
    def multiple(self) -> int:
        """The number that width and height must divide by."""
        processor = getattr(self.pipe, "image_processor", None)
        own = int(getattr(getattr(processor, "config", None), "vae_scale_factor", None) or self._scale)
        patch = getattr(getattr(self.model, "config", None), "patch_size", None)
        return math.lcm(own, self._scale * (patch if isinstance(patch, int) else 1))

    @property
    def max_pixels(self) -> int:
        """The most pixels of a picture."""
        width, height = self.size
        return int(self.options["max_pixels"] or 4 * width * height)

    def prove(self) -> None:
        pictures = int(self._signature.needs(PICTURES))
        width, height = (min(side, 16 * self.multiple) for side in self.size)
        trial = ImageGeneration(prompt="a picture", seed=0, steps=2, pictures=pictures)
        if self._signature.takes("width"):
            trial.width, trial.height = width, height
        if self._signature.needs(MASK):
            return  # what a mask must look like is the pipeline's own business
        (cursor,) = self.open(Work(-1, "warm-up", {}), trial)
        grey = Payload("image", {}, {"pixels": np.full((height, width, 3), 127, np.uint8)})
        cursor.inputs[PORT] = [grey] * pictures
        call = self._call(cursor)
        try:
            while not isinstance(event := call.resume(), Returned):
                pass
            _picture(event.result)
        finally:
            call.close()

    # ---- a request

    def open(self, work: Work, image: ImageGeneration) -> Sequence[Cursor]:
        self._signature.check(image)
        image = copy.copy(image)
        size = (image.width, image.height)
        width, height = (own if asked is None else asked for asked, own in zip(size, self.size, strict=True))
        if size != (None, None):
            check_size(width, height, multiple=self.multiple, max_pixels=self.max_pixels)
            image.width, image.height = width, height
        image.steps = self.steps if image.steps is None else image.steps
        if not 1 <= image.steps <= self.options["max_steps"]:
            raise invalid_request(f"'steps' must be from 1 to {self.options['max_steps']}.", "steps")
        if not self._signature.takes("num_inference_steps"):
            image.steps = None
        if image.guidance is None and self._signature.takes("guidance_scale"):
            image.guidance = self.options["guidance"]
        if image.prompt is None:
            raise invalid_request("A prompt is needed.", "prompt")
        seed = image.seed or 0
        tokens = max(1, width * height // self.multiple**2)
        footprint = Footprint(
            state=width * height * 4, encode=4 << 20, step=tokens * 65536, decode=width * height * 256
        )
        steps = image.steps or 1
        return [
            Cursor(work, image, index, seed + index, width, height, steps, footprint, 2 * tokens)
            for index in range(image.n)
        ]

    def feed(self, cursors: Sequence[Cursor], port: str, payload: Payload | None, end: bool) -> None:
        if payload is not None:
            check_picture(payload)
        super().feed(cursors, port, payload, end)

    def _call(self, cursor: Cursor) -> PipelineCall:
        payloads = cursor.inputs.get(PORT, [])
        pictures: list[PIL.Image.Image] = [picture_of(it, "RGB") for it in payloads[: cursor.image.pictures]]
        mask = mask_of(payloads[-1]) if cursor.image.mask else None
        generator = torch.Generator("cpu").manual_seed(cursor.seed)
        return PipelineCall(self.pipe, self._signature.arguments(cursor.image, generator, pictures, mask))

    # ---- the call

    def encode_key(self, cursor: Cursor) -> Hashable:
        return cursor.key

    def encode(self, cursors: Sequence[Cursor]) -> Iterator[Sequence[Any] | None]:
        calls = [self._call(cursor) for cursor in cursors]
        handed_over = False
        try:
            for call in calls:
                call.resume()  # to where the timesteps are set
            handed_over = True
        except OmniError:
            raise
        except ValueError as error:  # before the first step: the pipeline's own checks of its arguments
            message = f"{type(self.pipe).__name__} refuses the request: {error}"
            raise invalid_request(message, "prompt") from error
        finally:
            if not handed_over:
                for call in calls:
                    call.close()
        yield calls

    def begin(self, cursor: Cursor) -> None:
        # The first picture of a request goes on with the call that has read the prompt.
        first = cursor.index == 0
        call = cursor.conditioning if first else self._call(cursor)
        cursor.state["call"] = cursor.scheduler = call
        cursor.inputs.clear()

    def batch_key(self, cursor: Cursor) -> Hashable:
        return id(cursor)

    def predict(self, cursors: Sequence[Cursor]) -> Sequence[Any]:
        (cursor,) = cursors
        event = cursor.state["call"].resume()
        while isinstance(event, Scheduled):
            event = cursor.state["call"].resume()
        return [event]

    def advance(self, cursor: Cursor, prediction: Any) -> None:
        if isinstance(prediction, Returned):  # the pipeline made fewer steps than it has timesteps
            cursor.state["result"] = prediction.result
            cursor.steps = cursor.step + 1
            return
        assert isinstance(prediction, Stepped)
        cursor.latents = prediction.latents
        if cursor.step == 0:
            pipe = cursor.state["call"].pipe
            cursor.steps = getattr(pipe, "_num_timesteps", None) or len(pipe.scheduler.timesteps)

    def decode_key(self, cursor: Cursor) -> Hashable:
        return id(cursor)

    def decode(self, cursors: Sequence[Cursor]) -> Iterator[Sequence[Any] | None]:
        (cursor,) = cursors
        if "result" not in cursor.state:
            while not isinstance(event := cursor.state["call"].resume(), Returned):
                yield None
            yield [_sized(_picture(event.result), cursor)]
        else:
            yield [_sized(_picture(cursor.state["result"]), cursor)]

    def preview(self, cursor: Cursor, prediction: Any) -> Pixels | None:
        """Return a preview of the predicted clean picture, if the scheduler or its noise levels say which that is, and
        the VAE takes the latents as they are."""
        vae = getattr(self.pipe, "vae", None)
        channels = getattr(getattr(vae, "config", None), "latent_channels", None)
        if vae is None or not isinstance(prediction, Stepped):
            return None
        latents = prediction.clean if prediction.clean is not None else _clean_of_flow(cursor, prediction)
        if latents is None or latents.dim() != 4 or latents.shape[1] != channels:
            return None
        with torch.inference_mode():
            small = shrunk(latents[:1], max(1, self.options["preview_side"] // self._scale))
            scaled = small / vae.config.scaling_factor + (getattr(vae.config, "shift_factor", None) or 0.0)
            return to_pixels(vae.decode(scaled.to(vae.dtype), return_dict=False)[0])

    def close(self, cursor: Cursor) -> None:
        call = cursor.state.pop("call", None)
        if call is None and cursor.index == 0:
            call = cursor.conditioning
        if call is not None:
            call.close()


def _clean_of_flow(cursor: Cursor, prediction: Stepped) -> torch.Tensor | None:
    """Return the clean latents that a velocity points at; ``None`` if the scheduler is none of a flow."""
    scheduler = cursor.state["call"].scheduler
    if "FlowMatch" not in type(scheduler).__name__ or scheduler.step_index is None:
        return None
    clean: torch.Tensor = prediction.before - scheduler.sigmas[scheduler.step_index - 1] * prediction.prediction
    return clean


def _picture(result: Any) -> Pixels:
    """Return the pixels of the first picture of a pipeline's output."""
    pictures = getattr(result, "images", None)
    if pictures is None:
        raise TypeError(f"the pipeline returned a {type(result).__name__} without pictures")
    picture = pictures[0]
    if isinstance(picture, list):
        picture = picture[0]
    if not isinstance(picture, PIL.Image.Image):
        raise TypeError(f"the pipeline returned a {type(picture).__name__} instead of a picture")
    kept = picture if picture.mode in ("L", "RGB", "RGBA") else picture.convert("RGB")
    array: Pixels = np.array(kept)
    return array[..., None] if array.ndim == 2 else array


def _sized(pixels: Pixels, cursor: Cursor) -> Pixels:
    """Return the pixels, if they have the size that the client named."""
    asked, got = (cursor.image.width, cursor.image.height), (pixels.shape[1], pixels.shape[0])
    if asked != (None, None) and asked != got:
        message = f"The pipeline made {got[0]}x{got[1]} pixels instead of {asked[0]}x{asked[1]}."
        raise invalid_request(message, "size")
    return pixels
