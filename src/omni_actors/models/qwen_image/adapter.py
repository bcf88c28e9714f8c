"""Qwen-Image: pictures from text. Texts of any length share a forward, under a mask."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from omni_actors.models.diffusion.acceleration.step_cache import BlockLayout
from omni_actors.models.diffusion.adapter import DiffusersAdapter
from omni_actors.models.diffusion.flow import dynamic_shift
from omni_actors.models.diffusion.rows import Conditioning, Row
from omni_actors.protocol.errors import invalid_request
from omni_actors.protocol.params import ImageGeneration
from omni_actors.worker.engine import Work
from omni_actors.worker.engines.diffusion.adapter import ENCODE
from omni_actors.worker.engines.diffusion.cursor import Cursor

TOKENS = 512
"""Tokens of a prompt that the model reads, as in diffusers' pipeline."""

NO_NEGATIVE = " "
"""The negative prompt of a request that has guidance and names none, as the model's authors use it."""


class QwenImage(DiffusersAdapter):
    """``QwenImagePipeline``, text to image. ``guidance`` is the pipeline's ``true_cfg_scale``."""

    pipeline_class = "QwenImagePipeline"
    blocks = BlockLayout()
    encoders = ("text_encoder", "tokenizer", "processor")
    accepts = frozenset({"true_guidance"})
    default_steps = 50
    default_guidance = 4.0

    @property
    def multiple(self) -> int:
        return int(2 * self.pipe.vae_scale_factor)

    @property
    def default_size(self) -> tuple[int, int]:
        side = self.pipe.default_sample_size * self.pipe.vae_scale_factor
        return side, side

    @property
    def distilled(self) -> bool:
        """Whether the transformer takes the guidance as a number, beside the second branch."""
        return bool(self.model.config.guidance_embeds)

    # ---- a request

    def completed(self, image: ImageGeneration) -> ImageGeneration:
        one, two = image.guidance, image.true_guidance
        image = super().completed(image)
        if self.distilled:
            image.true_guidance = 1.0 if two is None else two
            return image
        if one is not None and two is not None and one != two:
            message = "This model has one guidance scale: 'guidance_scale' and 'true_cfg_scale' must be equal."
            raise invalid_request(message, "true_cfg_scale")
        image.true_guidance = image.guidance if two is None else two
        return image

    def branch_count(self, image: ImageGeneration) -> int:
        return 2 if image.true_guidance is not None and image.true_guidance > 1 else 1

    def check(self, work: Work, image: ImageGeneration) -> None:
        super().check(work, image)
        if ENCODE in self.parts:
            self.check_prompt(self.pipe.tokenizer, image.prompt, TOKENS, "prompt")
            self.check_prompt(self.pipe.tokenizer, image.negative_prompt, TOKENS, "negative_prompt")

    # ---- conditioning

    def condition(self, cursor: Cursor) -> Conditioning:
        """Return the conditioning of one request: embeddings [1, tokens, width] of its texts."""
        image = cursor.image
        negative = None
        if self.branch_count(image) == 2:
            negative = self.embed(image.negative_prompt or NO_NEGATIVE)
        return Conditioning(self.embed(image.prompt or ""), negative)

    def embed(self, text: str, **pictures: Any) -> torch.Tensor:
        """Return the embeddings [1, tokens, width] of a text, and of the pictures that come before it."""
        embeddings: torch.Tensor
        embeddings, _ = self.pipe.encode_prompt(prompt=text, device=self.device, max_sequence_length=TOKENS, **pictures)
        return embeddings

    # ---- denoising

    @property
    def channels(self) -> int:
        """The channels of the VAE's latents."""
        return int(self.model.config.in_channels // 4)

    def noise(self, cursor: Cursor) -> torch.Tensor:
        latents: torch.Tensor = self.pipe.prepare_latents(
            1, self.channels, cursor.height, cursor.width, self.dtype, self.device, cursor.generator, None
        )
        return latents

    def schedule(self, cursor: Cursor) -> None:
        cursor.scheduler.set_timesteps(
            sigmas=np.linspace(1.0, 1 / cursor.steps, cursor.steps), device=self.device, mu=self.shift(cursor)
        )
        cursor.scheduler.set_begin_index(0)
        self.use_timesteps(cursor)

    def shift(self, cursor: Cursor) -> float:
        """Return the shift of the schedule for the picture's size."""
        return dynamic_shift(self.pipe.scheduler.config, cursor.latents.shape[1])

    def grid(self, width: int, height: int) -> tuple[int, int, int]:
        """Return the (frames, height, width) of a picture in tokens."""
        return 1, height // self.multiple, width // self.multiple

    def shapes(self, cursor: Cursor) -> list[tuple[int, int, int]]:
        """Return the grids of all pictures in a cursor's sequence: the new one, then those of the conditioning."""
        return [self.grid(cursor.width, cursor.height)]

    def sequence(self, cursor: Cursor) -> torch.Tensor:
        """Return the sequence [1, tokens, channels] that the transformer reads for a cursor; the latents come
        first."""
        latents: torch.Tensor = cursor.latents
        return latents

    def batch_key(self, cursor: Cursor) -> Hashable:
        return tuple(self.shapes(cursor))

    def forward(self, rows: Sequence[Row]) -> torch.Tensor:
        texts, mask = padded([row.embeddings for row in rows])
        guidance = None
        if self.distilled:
            guidance = torch.tensor([row.cursor.image.guidance for row in rows], device=self.device)
        output: torch.Tensor = self.model(
            hidden_states=torch.cat([self.sequence(row.cursor) for row in rows]),
            timestep=torch.stack([row.timestep for row in rows]).to(self.dtype) / 1000,
            guidance=guidance,
            encoder_hidden_states=texts,
            encoder_hidden_states_mask=mask,
            img_shapes=[self.shapes(row.cursor) for row in rows],
            return_dict=False,
            **self.further(rows),
        )[0]
        return output[:, : rows[0].cursor.latents.shape[1]]

    def further(self, rows: Sequence[Row]) -> dict[str, Any]:
        """Return further arguments of the transformer."""
        return {}

    def scale(self, cursor: Cursor) -> float:
        return float(cursor.image.true_guidance or 0)

    def combine(self, negative: torch.Tensor, positive: torch.Tensor, scale: Any) -> torch.Tensor:
        combined = super().combine(negative, positive, scale)
        norm = torch.linalg.vector_norm
        ratio = norm(positive, dim=-1, keepdim=True) / norm(combined, dim=-1, keepdim=True)
        guided: torch.Tensor = combined * ratio
        return guided

    # ---- pixels

    def spatial(self, cursor: Cursor, latents: torch.Tensor) -> torch.Tensor:
        unpacked: torch.Tensor = self.pipe._unpack_latents(
            latents, cursor.height, cursor.width, self.pipe.vae_scale_factor
        )
        return unpacked

    def decoded(self, latents: torch.Tensor) -> torch.Tensor:
        vae = self.pipe.vae
        latents = latents.to(vae.dtype)
        mean, std = (
            torch.tensor(numbers).view(1, vae.config.z_dim, 1, 1, 1).to(latents.device, latents.dtype)
            for numbers in (vae.config.latents_mean, vae.config.latents_std)
        )
        picture: torch.Tensor = vae.decode(latents / (1.0 / std) + mean, return_dict=False)[0][:, :, 0]
        return picture


def padded(texts: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return embeddings [1, tokens, width] of several lengths as one batch, and its mask [rows, tokens] (``None`` if
    all lengths are equal)."""
    longest = max(text.shape[1] for text in texts)
    if all(text.shape[1] == longest for text in texts):
        return torch.cat(list(texts)), None
    batch = pad_sequence([text[0] for text in texts], batch_first=True)
    lengths = torch.tensor([text.shape[1] for text in texts], device=batch.device)
    mask = torch.arange(longest, device=batch.device) < lengths[:, None]
    return batch, mask.long()
