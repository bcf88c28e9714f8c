"""FLUX.1: packed latents, rotary positions, guidance as an input of the transformer."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from omni_actors.models.diffusion.acceleration.step_cache import BlockLayout
from omni_actors.models.diffusion.adapter import DiffusersAdapter
from omni_actors.models.diffusion.flow import PackedLatents, dynamic_shift, set_flow_timesteps
from omni_actors.models.diffusion.rows import Conditioning, Row
from omni_actors.models.flux.options import OPTIONS
from omni_actors.protocol.errors import invalid_request
from omni_actors.protocol.frames import Hello
from omni_actors.protocol.options import filled
from omni_actors.protocol.params import ImageGeneration
from omni_actors.worker.engine import Work
from omni_actors.worker.engines.diffusion.adapter import ENCODE
from omni_actors.worker.engines.diffusion.cursor import Cursor


@dataclass(frozen=True, slots=True)
class Embeddings:
    """The embeddings of one prompt: ``sequence`` [1, tokens, width] and ``pooled`` [1, width]."""

    sequence: torch.Tensor
    pooled: torch.Tensor


class Flux(PackedLatents, DiffusersAdapter):
    """``FluxPipeline``, text to image.

    The latents are packed: a token is a patch of 2 x 2. A model distilled for guidance (dev) takes the guidance scale
    as an input of each row; another one (schnell) takes none. A negative prompt is a second branch, with
    ``true_cfg_scale``.
    """

    pipeline_class = "FluxPipeline"
    blocks = BlockLayout()
    encoders = ("text_encoder", "text_encoder_2", "tokenizer", "tokenizer_2", "image_encoder", "feature_extractor")
    structures: ClassVar[tuple[type, ...]] = (Embeddings,)
    accepts = frozenset({"true_guidance"})
    default_guidance = 3.5

    def __init__(self, hello: Hello) -> None:
        super().__init__(hello)
        self.options = filled(OPTIONS, self.options)

    @property
    def guided(self) -> bool:
        """Whether the transformer takes the guidance scale as an input."""
        return bool(self.model.config.guidance_embeds)

    def prepare(self) -> None:
        if not self.guided:  # distilled to few steps
            own = {"steps": self.options["steps"] or 4, "guidance": 1.0}
            self.options = {**self.options, **own}

    # ---- a request

    def completed(self, image: ImageGeneration) -> ImageGeneration:
        if not self.guided and image.guidance is not None and image.guidance > 1:
            raise invalid_request("This model takes no guidance scale; leave it out.", "guidance_scale")
        return super().completed(image)

    def check(self, work: Work, image: ImageGeneration) -> None:
        super().check(work, image)
        guided = image.true_guidance is not None and image.true_guidance > 1
        if guided and image.negative_prompt is None:
            raise invalid_request("'true_cfg_scale' needs a 'negative_prompt'.", "true_cfg_scale")
        if image.negative_prompt is not None and not guided:
            raise invalid_request("'negative_prompt' needs a 'true_cfg_scale' above 1.", "negative_prompt")
        if ENCODE in self.parts:
            most = self.options["max_sequence_length"]
            self.check_prompt(self.pipe.tokenizer_2, image.prompt, most, "prompt")
            self.check_prompt(self.pipe.tokenizer_2, image.negative_prompt, most, "negative_prompt")

    def branch_count(self, image: ImageGeneration) -> int:
        guided = image.true_guidance is not None and image.true_guidance > 1 and image.negative_prompt is not None
        return 2 if guided else 1

    # ---- encoding

    def condition(self, cursor: Cursor) -> Conditioning:
        """Return the conditioning of one request."""
        image = cursor.image
        negative = self._embed(image.negative_prompt) if self.branch_count(image) == 2 else None
        return Conditioning(self._embed(image.prompt), negative)

    def _embed(self, prompt: str | None) -> Embeddings:
        sequence, pooled, _ = self.pipe.encode_prompt(
            prompt=prompt,
            prompt_2=None,
            device=self.device,
            max_sequence_length=self.options["max_sequence_length"],
        )
        return Embeddings(sequence, pooled)

    # ---- denoising

    def noise(self, cursor: Cursor) -> torch.Tensor:
        channels = self.model.config.in_channels // 4
        latents, ids = self.pipe.prepare_latents(
            1, channels, cursor.height, cursor.width, self.dtype, self.device, cursor.generator
        )
        cursor.state["ids"] = ids
        packed: torch.Tensor = latents
        return packed

    def schedule(self, cursor: Cursor) -> None:
        mu = dynamic_shift(cursor.scheduler.config, cursor.latents.shape[1])
        set_flow_timesteps(cursor, self.device, mu)
        self.use_timesteps(cursor)

    def batch_key(self, cursor: Cursor) -> Hashable:
        return (cursor.width, cursor.height, cursor.conditioning.positive.sequence.shape[1])

    def forward(self, rows: Sequence[Row]) -> torch.Tensor:
        first = rows[0]
        text = first.embeddings.sequence
        guidance = None
        if self.guided:
            scales = [row.cursor.image.guidance for row in rows]
            guidance = torch.tensor(scales, dtype=torch.float32, device=self.device)
        output: torch.Tensor = self.model(
            hidden_states=torch.cat([self.tokens_in(row.cursor) for row in rows]),
            timestep=torch.stack([row.timestep for row in rows]).to(self.dtype) / 1000,
            guidance=guidance,
            pooled_projections=torch.cat([row.embeddings.pooled for row in rows]),
            encoder_hidden_states=torch.cat([row.embeddings.sequence for row in rows]),
            txt_ids=torch.zeros(text.shape[1], 3, device=self.device, dtype=text.dtype),
            img_ids=first.cursor.state["ids"],
            return_dict=False,
        )[0]
        return output[:, : first.cursor.latents.shape[1]]

    def tokens_in(self, cursor: Cursor) -> torch.Tensor:
        """Return the tokens [1, tokens, channels] that the transformer reads for a cursor."""
        latents: torch.Tensor = cursor.latents
        return latents

    def guide(self, cursor: Cursor, branches: Any) -> torch.Tensor:
        if len(branches) == 1:
            only: torch.Tensor = branches[0][None]
            return only
        negative, positive = branches[0][None], branches[1][None]
        guided: torch.Tensor = negative + cursor.image.true_guidance * (positive - negative)
        return guided

    # ---- pixels

    def spatial(self, cursor: Cursor, latents: torch.Tensor) -> torch.Tensor:
        unpacked: torch.Tensor = self.pipe._unpack_latents(
            latents, cursor.height, cursor.width, self.pipe.vae_scale_factor
        )
        return unpacked
