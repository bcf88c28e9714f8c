"""Z-Image: one stream of text and picture. Pictures of different sizes and texts of any length share a forward."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import torch
from diffusers.pipelines.z_image.pipeline_z_image import get_default_z_image_sigmas

from omni_actors.models.diffusion.acceleration.step_cache import BlockLayout
from omni_actors.models.diffusion.adapter import DiffusersAdapter
from omni_actors.models.diffusion.flow import dynamic_shift
from omni_actors.models.diffusion.rows import Conditioning, Row
from omni_actors.protocol.params import ImageGeneration
from omni_actors.worker.engine import Work
from omni_actors.worker.engines.diffusion.adapter import ENCODE
from omni_actors.worker.engines.diffusion.cursor import Cursor

TOKENS = 512
"""Tokens of a prompt with its chat template that the model reads, as in diffusers' pipeline."""


class ZImage(DiffusersAdapter):
    """``ZImagePipeline``, text to image."""

    pipeline_class = "ZImagePipeline"
    blocks = BlockLayout(lists=("layers",), mask="attn_mask")
    encoders = ("text_encoder", "tokenizer")
    default_steps = 50
    default_guidance = 5.0

    @property
    def multiple(self) -> int:
        return int(2 * self.pipe.vae_scale_factor)

    @property
    def default_size(self) -> tuple[int, int]:
        return 1024, 1024

    @property
    def max_side(self) -> int | None:
        return int(min(self.model.config.axes_lens[1:]) * self.multiple)

    def check(self, work: Work, image: ImageGeneration) -> None:
        super().check(work, image)
        if ENCODE in self.parts:
            for param, text in (("prompt", image.prompt), ("negative_prompt", image.negative_prompt)):
                self.check_prompt(self.pipe.tokenizer, text and self._templated(text), TOKENS, param)

    def _templated(self, text: str) -> str:
        messages = [{"role": "user", "content": text}]
        templated: str = self.pipe.tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, enable_thinking=True
        )
        return templated

    def branch_count(self, image: ImageGeneration) -> int:
        return 2 if image.guidance is not None and image.guidance > 0 else 1

    def condition(self, cursor: Cursor) -> Conditioning:
        image = cursor.image
        two = self.branch_count(image) == 2
        positive, negative = self.pipe.encode_prompt(
            prompt=image.prompt or "",
            negative_prompt=image.negative_prompt,
            do_classifier_free_guidance=two,
            device=self.device,
            max_sequence_length=TOKENS,
        )
        return Conditioning(positive[0], negative[0] if two else None)

    def noise(self, cursor: Cursor) -> torch.Tensor:
        channels = self.model.config.in_channels
        latents: torch.Tensor = self.pipe.prepare_latents(
            1, channels, cursor.height, cursor.width, torch.float32, self.device, cursor.generator, None
        )
        return latents

    def schedule(self, cursor: Cursor) -> None:
        shift = dynamic_shift(self.pipe.scheduler.config, self.tokens(cursor.image))
        sigmas = get_default_z_image_sigmas(cursor.steps)
        cursor.scheduler.set_timesteps(sigmas=sigmas, device=self.device, mu=shift)
        cursor.scheduler.set_begin_index(0)
        self.use_timesteps(cursor)

    def batch_key(self, cursor: Cursor) -> Hashable:
        # Shorter sequences are padded: any sizes share a forward that does not more than double each other.
        return self.tokens(cursor.image).bit_length()

    def forward(self, rows: Sequence[Row]) -> Sequence[torch.Tensor]:
        output: Sequence[torch.Tensor] = self.model(
            [row.cursor.latents[0].to(self.dtype).unsqueeze(1) for row in rows],
            torch.stack([(1000 - row.timestep) / 1000 for row in rows]),
            [row.embeddings for row in rows],
            return_dict=False,
        )[0]
        return [-it.float().squeeze(1) for it in output]

    def guide(self, cursor: Cursor, branches: Any) -> torch.Tensor:
        if len(branches) == 1:
            return branches[0][None]
        negative, positive = branches[0][None], branches[1][None]
        guided: torch.Tensor = positive + cursor.image.guidance * (positive - negative)
        return guided
