"""Stable Diffusion 1 and 2: one text encoder."""

from __future__ import annotations

from typing import Any

import torch

from omni_actors.models.stable_diffusion.unet import Embeddings, UNetAdapter
from omni_actors.protocol.errors import invalid_request
from omni_actors.protocol.params import ImageGeneration
from omni_actors.worker.engine import Work
from omni_actors.worker.engines.diffusion.adapter import ENCODE
from omni_actors.worker.engines.diffusion.cursor import Cursor


class StableDiffusion(UNetAdapter):
    """``StableDiffusionPipeline``, ``StableDiffusionImg2ImgPipeline`` and ``StableDiffusionInpaintPipeline``."""

    pipeline_class = "StableDiffusionPipeline"
    encoders = ("text_encoder", "tokenizer", "image_encoder")
    default_guidance = 7.5

    def needs(self, component: str) -> bool:
        if component == "safety_checker":
            return bool(self.options.get("safety_checker", True)) and super().needs("vae")
        return super().needs(component)

    def check(self, work: Work, image: ImageGeneration) -> None:
        super().check(work, image)
        if ENCODE in self.parts:
            most = self.pipe.tokenizer.model_max_length
            self.check_prompt(self.pipe.tokenizer, image.prompt, most, "prompt")
            self.check_prompt(self.pipe.tokenizer, image.negative_prompt, most, "negative_prompt")

    def embed(self, image: ImageGeneration) -> tuple[Embeddings | None, Embeddings]:
        two = self.branch_count(image) == 2
        positive, negative = self.pipe.encode_prompt(
            image.prompt, self.device, 1, two, negative_prompt=image.negative_prompt
        )
        return Embeddings(negative) if two else None, Embeddings(positive)

    def pixels(self, cursor: Cursor, latents: torch.Tensor) -> Any:
        made = super().pixels(cursor, latents)
        if self.pipe.safety_checker is not None:
            picture = torch.from_numpy(made)[None].permute(0, 3, 1, 2) / 127.5 - 1
            _, flagged = self.pipe.run_safety_checker(picture.to(self.device), self.device, self.dtype)
            if any(flagged):
                raise invalid_request(
                    "The model's safety checker refused the picture.", "prompt", "content_policy_violation"
                )
        return made
