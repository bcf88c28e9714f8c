"""Stable Diffusion XL: two text encoders, and the picture's size as conditioning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from omni_actors.models.diffusion.rows import Row
from omni_actors.models.stable_diffusion.unet import Embeddings, UNetAdapter
from omni_actors.protocol.params import ImageGeneration
from omni_actors.worker.engine import Work
from omni_actors.worker.engines.diffusion.adapter import ENCODE
from omni_actors.worker.engines.diffusion.cursor import Cursor


class StableDiffusionXL(UNetAdapter):
    """``StableDiffusionXLPipeline``, ``StableDiffusionXLImg2ImgPipeline`` and ``StableDiffusionXLInpaintPipeline``."""

    pipeline_class = "StableDiffusionXLPipeline"
    encoders = ("text_encoder", "text_encoder_2", "tokenizer", "tokenizer_2", "image_encoder", "feature_extractor")
    default_strength = 0.3

    def prepare(self) -> None:
        if self.pipe.vae.config.force_upcast and self.pipe.vae.dtype is torch.float16:
            self.pipe.vae.to(torch.float32)  # its activations overflow in float16

    def check(self, work: Work, image: ImageGeneration) -> None:
        super().check(work, image)
        if ENCODE in self.parts:
            words = self.pipe.tokenizer_2
            self.check_prompt(words, image.prompt, words.model_max_length, "prompt")
            self.check_prompt(words, image.negative_prompt, words.model_max_length, "negative_prompt")

    def embed(self, image: ImageGeneration) -> tuple[Embeddings | None, Embeddings]:
        two = self.branch_count(image) == 2
        positive, negative, pooled, negative_pooled = self.pipe.encode_prompt(
            prompt=image.prompt,
            device=self.device,
            do_classifier_free_guidance=two,
            negative_prompt=image.negative_prompt,
        )
        return Embeddings(negative, negative_pooled) if two else None, Embeddings(positive, pooled)

    def added(self, rows: Sequence[Row]) -> Mapping[str, torch.Tensor]:
        sizes = [_sizes(row.cursor) for row in rows]
        return {
            "text_embeds": torch.cat([row.embeddings.pooled for row in rows]),
            "time_ids": torch.tensor(sizes, dtype=rows[0].embeddings.sequence.dtype, device=self.device),
        }

    def decoded(self, latents: torch.Tensor) -> torch.Tensor:
        config = self.pipe.vae.config
        mean, deviation = getattr(config, "latents_mean", None), getattr(config, "latents_std", None)
        if mean is not None and deviation is not None:
            mean, deviation = (torch.tensor(it).view(1, -1, 1, 1).to(latents) for it in (mean, deviation))
            latents = latents * deviation + mean * config.scaling_factor
        return super().decoded(latents)


def _sizes(cursor: Cursor) -> list[int]:
    """Return the original size, the corner of the crop and the size to make, as the model was trained to read them."""
    return [cursor.height, cursor.width, 0, 0, cursor.height, cursor.width]
