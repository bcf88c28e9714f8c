"""Stable Diffusion 3: joint attention over text and picture, rectified flow."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch

from omni_actors.models.diffusion.acceleration.step_cache import BlockLayout
from omni_actors.models.diffusion.adapter import DiffusersAdapter
from omni_actors.models.diffusion.flow import dynamic_shift
from omni_actors.models.diffusion.rows import Conditioning, Row
from omni_actors.protocol.params import ImageGeneration
from omni_actors.worker.engine import Work
from omni_actors.worker.engines.diffusion.adapter import ENCODE
from omni_actors.worker.engines.diffusion.cursor import Cursor

T5_TOKENS = 256
"""Tokens of a prompt that the third text encoder reads, as in diffusers' pipeline."""


@dataclass(frozen=True, slots=True)
class Embeddings:
    """The embeddings of one prompt: ``sequence`` [1, tokens, width] and ``pooled`` [1, width]."""

    sequence: torch.Tensor
    pooled: torch.Tensor


class StableDiffusion3(DiffusersAdapter):
    """``StableDiffusion3Pipeline``, text to image."""

    pipeline_class = "StableDiffusion3Pipeline"
    encoders = ("text_encoder", "text_encoder_2", "text_encoder_3", "tokenizer", "tokenizer_2", "tokenizer_3")
    structures = (Embeddings,)
    blocks = BlockLayout()
    default_guidance = 7.0

    @property
    def max_side(self) -> int | None:
        config = self.model.config
        return int(config.pos_embed_max_size * config.patch_size * self.pipe.vae_scale_factor)

    def check(self, work: Work, image: ImageGeneration) -> None:
        super().check(work, image)
        if ENCODE not in self.parts:
            return
        # The third encoder reads further than the others; a checkpoint may lack it.
        tokenizer, most = self.pipe.tokenizer_3, T5_TOKENS
        if tokenizer is None:
            tokenizer, most = self.pipe.tokenizer, self.pipe.tokenizer_max_length
        self.check_prompt(tokenizer, image.prompt, most, "prompt")
        self.check_prompt(tokenizer, image.negative_prompt, most, "negative_prompt")

    def condition(self, cursor: Cursor) -> Conditioning:
        image = cursor.image
        two = self.branch_count(image) == 2
        sequence, negative, pooled, negative_pooled = self.pipe.encode_prompt(
            prompt=image.prompt,
            prompt_2=None,
            prompt_3=None,
            negative_prompt=image.negative_prompt,
            do_classifier_free_guidance=two,
            device=self.device,
            max_sequence_length=T5_TOKENS,
        )
        return Conditioning(Embeddings(sequence, pooled), Embeddings(negative, negative_pooled) if two else None)

    def noise(self, cursor: Cursor) -> torch.Tensor:
        channels = self.model.config.in_channels
        latents: torch.Tensor = self.pipe.prepare_latents(
            1, channels, cursor.height, cursor.width, self.dtype, self.device, cursor.generator, None
        )
        return latents

    def schedule(self, cursor: Cursor) -> None:
        arguments = {}
        config = self.pipe.scheduler.config
        if config.get("use_dynamic_shifting", None):
            arguments["mu"] = dynamic_shift(config, self.tokens(cursor.image), max_shift=1.16)
        cursor.scheduler.set_timesteps(cursor.steps, device=self.device, **arguments)
        self.use_timesteps(cursor)

    def batch_key(self, cursor: Cursor) -> Hashable:
        return (tuple(cursor.latents.shape), cursor.conditioning.positive.sequence.shape[1])

    def forward(self, rows: Sequence[Row]) -> torch.Tensor:
        output: torch.Tensor = self.model(
            hidden_states=torch.cat([row.cursor.latents for row in rows]),
            timestep=torch.stack([row.timestep for row in rows]),
            encoder_hidden_states=torch.cat([row.embeddings.sequence for row in rows]),
            pooled_projections=torch.cat([row.embeddings.pooled for row in rows]),
            return_dict=False,
        )[0]
        return output
