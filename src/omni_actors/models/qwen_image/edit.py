"""Qwen-Image-Edit and -Edit-Plus: one or several pictures are read by the text encoder and by the transformer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import PIL.Image
import torch
from diffusers.image_processor import VaeImageProcessor
from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution
from diffusers.utils.torch_utils import randn_tensor

from omni_actors.models.diffusion.editing import PORT, EditingAdapter, Kept
from omni_actors.models.diffusion.pixels import Pixels
from omni_actors.models.diffusion.rows import Conditioning
from omni_actors.models.qwen_image.adapter import NO_NEGATIVE, QwenImage
from omni_actors.models.qwen_image.options import EDIT_OPTIONS
from omni_actors.models.qwen_image.processor import picture_processor
from omni_actors.protocol.errors import invalid_request
from omni_actors.protocol.frames import Hello
from omni_actors.protocol.options import filled
from omni_actors.protocol.params import ImageGeneration
from omni_actors.worker.engine import Work
from omni_actors.worker.engines.diffusion.adapter import ENCODE
from omni_actors.worker.engines.diffusion.cursor import Cursor


class QwenImageEdit(EditingAdapter, QwenImage):
    """``QwenImageEditPipeline``; with a mask ``QwenImageEditInpaintPipeline``."""

    pipeline_class = "QwenImageEditPipeline"
    accepts = frozenset({"true_guidance", "pictures", "mask", "strength"})
    takes_mask = True

    def __init__(self, hello: Hello) -> None:
        super().__init__(hello)
        self.options: Mapping[str, Any] = filled(EDIT_OPTIONS, self.options)

    def given(self) -> Mapping[str, Any]:
        return {"processor": picture_processor(self.hello.model or "") if ENCODE in self.parts else None}

    def check(self, work: Work, image: ImageGeneration) -> None:
        super().check(work, image)
        if image.strength is None:
            return
        if not image.mask:
            raise invalid_request("This model uses 'strength' only with a mask.", "strength")
        if not 0 < image.strength <= 1 or int(image.strength * (image.steps or 1)) < 1:
            raise invalid_request("'strength' must be above 0, to 1, and leave at least one step.", "strength")

    def size_for(self, sizes: Sequence[tuple[int, int]]) -> tuple[int, int]:
        return fitting(self.options["picture_pixels"], sizes[0])

    # ---- conditioning

    def condition(self, cursor: Cursor) -> Conditioning:
        image, pictures, mask = cursor.image, self.pictures(cursor), self.mask(cursor)
        sizes = [fitting(self.options["picture_pixels"], picture.size) for picture in pictures]
        if mask is not None:
            sizes[0] = (cursor.width, cursor.height)
        seen = self.seen(pictures, sizes)
        negative = None
        if self.branch_count(image) == 2:
            negative = self.embed(image.negative_prompt or NO_NEGATIVE, image=seen)
        extra: dict[str, Any] = {"shapes": [self.grid(*size) for size in sizes]}
        encoded = [self._encoded(picture, size) for picture, size in zip(pictures, sizes, strict=True)]
        extra["latents"] = [self._packed(self._scaled(it.mode())) for it in encoded]
        if mask is not None:
            extra["posterior"] = encoded[0].parameters
            extra["mask"] = self._mask_latents(mask, cursor)
            extra["kept"] = Kept.state(pictures[0], mask, cursor.width, cursor.height)
        return Conditioning(self.embed(image.prompt or "", image=seen), negative, extra)

    def seen(self, pictures: list[PIL.Image.Image], sizes: list[tuple[int, int]]) -> Any:
        """Return what the text encoder sees of the pictures."""
        (width, height) = sizes[0]
        return self.pipe.image_processor.resize(pictures[0], height, width)

    def _encoded(self, picture: PIL.Image.Image, size: tuple[int, int]) -> DiagonalGaussianDistribution:
        width, height = size
        processor = self.pipe.image_processor
        pixels = processor.preprocess(processor.resize(picture, height, width), height, width).unsqueeze(2)
        encoded: DiagonalGaussianDistribution
        encoded = self.pipe.vae.encode(pixels.to(device=self.device, dtype=self.dtype)).latent_dist
        return encoded

    def _scaled(self, latents: torch.Tensor) -> torch.Tensor:
        config = self.pipe.vae.config
        mean, std = (
            torch.tensor(numbers).view(1, config.z_dim, 1, 1, 1).to(latents.device, latents.dtype)
            for numbers in (config.latents_mean, config.latents_std)
        )
        return (latents - mean) / std

    def _packed(self, latents: torch.Tensor) -> torch.Tensor:
        """Return latents [1, channels, 1, height, width] as tokens."""
        height, width = latents.shape[-2:]
        packed: torch.Tensor = self.pipe._pack_latents(latents, 1, latents.shape[1], height, width)
        return packed

    def _mask_latents(self, mask: PIL.Image.Image, cursor: Cursor) -> torch.Tensor:
        scale = self.pipe.vae_scale_factor
        processor = VaeImageProcessor(
            vae_scale_factor=2 * scale, do_normalize=False, do_binarize=True, do_convert_grayscale=True
        )
        fitted = processor.preprocess(mask, height=cursor.height, width=cursor.width)
        small = torch.nn.functional.interpolate(fitted, size=(cursor.height // scale, cursor.width // scale))
        tokens = self._packed(small.repeat(1, self.channels, 1, 1)[:, :, None])
        return tokens.to(device=self.device, dtype=self.dtype)

    # ---- denoising

    def shapes(self, cursor: Cursor) -> list[tuple[int, int, int]]:
        return [*super().shapes(cursor), *map(tuple, cursor.conditioning.extra["shapes"])]

    def sequence(self, cursor: Cursor) -> torch.Tensor:
        pictures = cursor.conditioning.extra["latents"]
        if "clean" in cursor.state:  # under a mask, the latents that were drawn of the first picture
            pictures = [cursor.state["clean"], *pictures[1:]]
        return torch.cat([cursor.latents, *pictures], dim=1)

    def begin(self, cursor: Cursor) -> None:
        super().begin(cursor)
        if "mask" in cursor.conditioning.extra:
            cursor.state["kept"] = cursor.conditioning.extra["kept"]
            with torch.inference_mode():
                first = cursor.timesteps[0][None]
                noised = cursor.scheduler.scale_noise(cursor.state["clean"], first, cursor.state["noise"])
                cursor.latents = noised

    def noise(self, cursor: Cursor) -> torch.Tensor:
        posterior = cursor.conditioning.extra.get("posterior")
        if posterior is not None:  # diffusers draws the latents of the picture before the noise
            drawn = DiagonalGaussianDistribution(posterior).sample(cursor.generator)
            cursor.state["clean"] = self._packed(self._scaled(drawn))
        scale = self.pipe.vae_scale_factor
        shape = (1, 1, self.channels, cursor.height // scale, cursor.width // scale)
        drawn = randn_tensor(shape, generator=cursor.generator, device=self.device, dtype=self.dtype)
        noise: torch.Tensor = self.pipe._pack_latents(drawn, 1, self.channels, *shape[-2:])
        if posterior is not None:
            cursor.state["noise"] = noise
        return noise

    def schedule(self, cursor: Cursor) -> None:
        super().schedule(cursor)
        strength = cursor.image.strength
        if strength is not None and strength < 1:
            start = int(max(cursor.steps - min(cursor.steps * strength, cursor.steps), 0))
            cursor.scheduler.set_begin_index(start)
            cursor.timesteps = cursor.timesteps[start:]
            cursor.steps -= start

    def advance(self, cursor: Cursor, prediction: Any) -> None:
        super().advance(cursor, prediction)
        mask = cursor.conditioning.extra.get("mask")
        if mask is None:
            return
        with torch.inference_mode():
            outside = cursor.state["clean"]
            if cursor.step + 1 < cursor.steps:
                following = cursor.timesteps[cursor.step + 1][None]
                outside = cursor.scheduler.scale_noise(outside, following, cursor.state["noise"])
            cursor.latents = (1 - mask) * outside + mask * cursor.latents

    # ---- pixels

    def kept(self, cursor: Cursor) -> dict[str, Any]:
        return {name: cursor.state[name] for name in ("kept",) if name in cursor.state}

    def pixels(self, cursor: Cursor, latents: torch.Tensor) -> Any:
        made: Pixels = super().pixels(cursor, latents)
        return Kept.laid_over(made, cursor.state["kept"]) if "kept" in cursor.state else made


class QwenImageEditPlus(QwenImageEdit):
    """``QwenImageEditPlusPipeline``: several pictures, each named in the text by its number."""

    pipeline_class = "QwenImageEditPlusPipeline"
    most_pictures = 16

    def size_for(self, sizes: Sequence[tuple[int, int]]) -> tuple[int, int]:
        return fitting(self.options["picture_pixels"], sizes[-1])

    def seen(self, pictures: list[PIL.Image.Image], sizes: list[tuple[int, int]]) -> Any:
        found = []
        for picture in pictures:
            width, height = fitting(self.options["seen_pixels"], picture.size)
            found.append(self.pipe.image_processor.resize(picture, height, width))
        return found


def fitting(pixels: int, size: tuple[int, int]) -> tuple[int, int]:
    """Return the width and height with about so many pixels and the form of a size, in multiples of 32, as diffusers
    computes them."""
    ratio = size[0] / size[1]
    width = math.sqrt(pixels * ratio)
    height = width / ratio
    return max(32, round(width / 32) * 32), max(32, round(height / 32) * 32)


__all__ = ["PORT", "QwenImageEdit", "QwenImageEditPlus", "fitting"]
