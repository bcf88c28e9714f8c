"""Qwen-Image-Layered: a picture is taken apart into layers with transparency."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from diffusers.utils.torch_utils import randn_tensor

from omni_actors.models.diffusion.editing import EditingAdapter
from omni_actors.models.diffusion.pixels import to_pixels
from omni_actors.models.diffusion.rows import Conditioning, Row
from omni_actors.models.qwen_image.adapter import QwenImage
from omni_actors.models.qwen_image.edit import fitting
from omni_actors.models.qwen_image.options import LAYERED_OPTIONS
from omni_actors.protocol.errors import invalid_request
from omni_actors.protocol.frames import Hello
from omni_actors.protocol.options import filled
from omni_actors.protocol.params import ImageGeneration
from omni_actors.worker.engine import Work
from omni_actors.worker.engines.diffusion.cursor import Cursor


class QwenImageLayered(EditingAdapter, QwenImage):
    """``QwenImageLayeredPipeline``. The prompt describes the picture; it may be empty only where the client says so."""

    pipeline_class = "QwenImageLayeredPipeline"
    accepts = frozenset({"true_guidance", "pictures", "layers"})

    def __init__(self, hello: Hello) -> None:
        super().__init__(hello)
        self.options: Mapping[str, Any] = filled(LAYERED_OPTIONS, self.options)

    def given(self) -> Mapping[str, Any]:
        return {"processor": None}  # it would describe pictures whose request does not

    def check(self, work: Work, image: ImageGeneration) -> None:
        super().check(work, image)
        most = self.options["max_layers"]
        if image.layers is not None and not 1 <= image.layers <= most:
            raise invalid_request(f"'layers' must be from 1 to {most}.", "layers")
        if not (image.prompt or "").strip():
            raise invalid_request("A prompt that describes the picture is needed.", "prompt")

    def completed(self, image: ImageGeneration) -> ImageGeneration:
        image = super().completed(image)
        image.layers = self.options["layers"] if image.layers is None else image.layers
        return image

    def size_for(self, sizes: Sequence[tuple[int, int]]) -> tuple[int, int]:
        return fitting(self.options["picture_pixels"], sizes[0])

    def tokens(self, image: ImageGeneration) -> int:
        return super().tokens(image) * ((image.layers or 1) + 1)

    def condition(self, cursor: Cursor) -> Conditioning:
        texts = super().condition(cursor)
        (picture,) = self.pictures(cursor, "RGBA")
        processor, size = self.pipe.image_processor, (cursor.height, cursor.width)
        pixels = processor.preprocess(processor.resize(picture, *size), *size).unsqueeze(2)
        latents = self.pipe._encode_vae_image(pixels.to(device=self.device, dtype=self.dtype), None)
        packed = self.pipe._pack_latents(latents.permute(0, 2, 1, 3, 4), 1, self.channels, *latents.shape[-2:], 1)
        return Conditioning(texts.positive, texts.negative, {"latents": packed})

    def noise(self, cursor: Cursor) -> torch.Tensor:
        layers, scale = (cursor.image.layers or 1) + 1, self.pipe.vae_scale_factor
        shape = (1, layers, self.channels, cursor.height // scale, cursor.width // scale)
        drawn = randn_tensor(shape, generator=cursor.generator, device=self.device, dtype=self.dtype)
        noise: torch.Tensor = self.pipe._pack_latents(drawn, 1, self.channels, *shape[-2:], layers)
        return noise

    def schedule(self, cursor: Cursor) -> None:
        tokens = cursor.conditioning.extra["latents"].shape[1]
        cursor.scheduler.set_timesteps(
            sigmas=np.linspace(1.0, 0, cursor.steps + 1)[:-1], device=self.device, mu=(tokens / 256) ** 0.5
        )
        cursor.scheduler.set_begin_index(0)
        self.use_timesteps(cursor)

    def shapes(self, cursor: Cursor) -> list[tuple[int, int, int]]:
        return [self.grid(cursor.width, cursor.height)] * ((cursor.image.layers or 1) + 2)

    def sequence(self, cursor: Cursor) -> torch.Tensor:
        return torch.cat([cursor.latents, cursor.conditioning.extra["latents"]], dim=1)

    def further(self, rows: Sequence[Row]) -> dict[str, Any]:
        return {"additional_t_cond": torch.zeros(len(rows), dtype=torch.long, device=self.device)}

    def guide(self, cursor: Cursor, branches: Any) -> torch.Tensor:
        if len(branches) == 1:
            return branches[0][None]
        negative, positive = branches[0][None], branches[1][None]
        guided: torch.Tensor = negative + cursor.image.true_guidance * (positive - negative)
        return guided

    def spatial(self, cursor: Cursor, latents: torch.Tensor) -> torch.Tensor:
        """Return the latents [layers, channels, 1, height, width] of the layers; the first of the sequence is the whole
        picture, which the client has."""
        layers = cursor.image.layers or 1
        unpacked = self.pipe._unpack_latents(latents, cursor.height, cursor.width, layers, self.pipe.vae_scale_factor)
        found: torch.Tensor = unpacked[0, :, 1:].permute(1, 0, 2, 3)[:, :, None]
        return found

    def pixels(self, cursor: Cursor, latents: torch.Tensor) -> Any:
        layers = self.spatial(cursor, latents)
        return [to_pixels(self.decoded(layers[index : index + 1])) for index in range(len(layers))]

    def preview(self, cursor: Cursor, prediction: Any) -> Any:
        """Return no preview: the pictures of a layered request are its layers."""
        return None
