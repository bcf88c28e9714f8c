"""Ovis-Image: a language model reads the prompt in a frame of its own; packed latents, guidance by a second branch."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch

from omni_actors.models.diffusion.acceleration.step_cache import BlockLayout
from omni_actors.models.diffusion.adapter import DiffusersAdapter
from omni_actors.models.diffusion.flow import PackedLatents, dynamic_shift, set_flow_timesteps
from omni_actors.models.diffusion.rows import Conditioning, Row
from omni_actors.protocol.errors import invalid_request
from omni_actors.protocol.params import ImageGeneration
from omni_actors.worker.engine import Work
from omni_actors.worker.engines.diffusion.adapter import ENCODE
from omni_actors.worker.engines.diffusion.cursor import Cursor

PROMPT_TOKENS = 256
"""Tokens of a prompt behind its frame that the language model reads, as in diffusers' pipeline."""


@dataclass(frozen=True, slots=True)
class Embeddings:
    """The embeddings of one prompt: ``sequence`` [1, tokens, width], and the ``positions`` [tokens, 3]."""

    sequence: torch.Tensor
    positions: torch.Tensor


class OvisImage(PackedLatents, DiffusersAdapter):
    """``OvisImagePipeline``."""

    pipeline_class = "OvisImagePipeline"
    blocks = BlockLayout()
    encoders = ("text_encoder", "tokenizer")
    structures = (Embeddings,)
    default_steps = 50

    def check(self, work: Work, image: ImageGeneration) -> None:
        super().check(work, image)
        if image.negative_prompt is not None and self.branch_count(image) == 1:
            raise invalid_request("'negative_prompt' needs a 'guidance_scale' above 1.", "negative_prompt")
        if ENCODE in self.parts:
            most = PROMPT_TOKENS + self.pipe.user_prompt_begin_id
            for text, param in ((image.prompt, "prompt"), (image.negative_prompt, "negative_prompt")):
                framed = None if text is None else self.pipe._get_messages(text)[0]
                self.check_prompt(self.pipe.tokenizer, framed, most, param)

    def condition(self, cursor: Cursor) -> Conditioning:
        image = cursor.image
        two = self.branch_count(image) == 2
        positive, negative, positions, negative_positions = self.pipe.encode_prompt(
            image.prompt, image.negative_prompt, two, device=self.device, max_sequence_length=PROMPT_TOKENS
        )
        return Conditioning(Embeddings(positive, positions), Embeddings(negative, negative_positions) if two else None)

    def noise(self, cursor: Cursor) -> torch.Tensor:
        channels = self.model.config.in_channels // 4
        latents, cursor.state["positions"] = self.pipe.prepare_latents(
            1, channels, cursor.height, cursor.width, self.dtype, self.device, cursor.generator
        )
        packed: torch.Tensor = latents
        return packed

    def schedule(self, cursor: Cursor) -> None:
        mu = dynamic_shift(cursor.scheduler.config, cursor.latents.shape[1])
        set_flow_timesteps(cursor, self.device, mu)
        self.use_timesteps(cursor)

    def batch_key(self, cursor: Cursor) -> Hashable:
        return (cursor.width, cursor.height, cursor.conditioning.positive.sequence.shape[1])

    def forward(self, rows: Sequence[Row]) -> torch.Tensor:
        output: torch.Tensor = self.model(
            hidden_states=torch.cat([row.cursor.latents for row in rows]),
            timestep=torch.stack([row.timestep for row in rows]).to(self.dtype) / 1000,
            encoder_hidden_states=torch.cat([row.embeddings.sequence for row in rows]),
            txt_ids=rows[0].embeddings.positions,
            img_ids=rows[0].cursor.state["positions"],
            return_dict=False,
        )[0]
        return output

    def spatial(self, cursor: Cursor, latents: torch.Tensor) -> torch.Tensor:
        unpacked: torch.Tensor = self.pipe._unpack_latents(
            latents, cursor.height, cursor.width, self.pipe.vae_scale_factor
        )
        return unpacked
