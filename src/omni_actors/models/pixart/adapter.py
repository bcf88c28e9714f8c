"""PixArt-Sigma: cross attention to T5's embeddings under a mask, and a scheduler of the Karras family."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from diffusers.pipelines.pixart_alpha import pipeline_pixart_sigma as tables
from diffusers.utils.torch_utils import randn_tensor

from omni_actors.models.diffusion.acceleration.step_cache import BlockLayout
from omni_actors.models.diffusion.karras import KarrasAdapter
from omni_actors.models.diffusion.pixels import to_pixels
from omni_actors.models.diffusion.rows import Conditioning, Row
from omni_actors.protocol.errors import invalid_request
from omni_actors.protocol.params import ImageGeneration
from omni_actors.worker.engine import Work
from omni_actors.worker.engines.diffusion.adapter import ENCODE
from omni_actors.worker.engines.diffusion.cursor import Cursor

PROMPT_TOKENS = 300
"""Tokens of a prompt that the text encoder reads, as in diffusers' pipeline."""

FORMS: Mapping[int, Any] = {
    32: tables.ASPECT_RATIO_256_BIN,
    64: tables.ASPECT_RATIO_512_BIN,
    128: tables.ASPECT_RATIO_1024_BIN,
    256: tables.ASPECT_RATIO_2048_BIN,
}
"""The sizes that a model was trained for, by the side of its latents."""


@dataclass(frozen=True, slots=True)
class Embeddings:
    """The embeddings of one prompt: ``sequence`` [1, tokens, width], and the ``mask`` [1, tokens] of its tokens."""

    sequence: torch.Tensor
    mask: torch.Tensor


class PixArtSigma(KarrasAdapter):
    """``PixArtSigmaPipeline``.

    As in diffusers' pipeline, a picture is made in the trained size that is nearest in form, then brought to the size
    that was asked for.
    """

    pipeline_class = "PixArtSigmaPipeline"
    blocks = BlockLayout()
    encoders = ("text_encoder", "tokenizer")
    structures = (Embeddings,)
    default_steps = 20
    default_guidance = 4.5

    def check(self, work: Work, image: ImageGeneration) -> None:
        super().check(work, image)
        if image.negative_prompt is not None and self.branch_count(image) == 1:
            raise invalid_request("'negative_prompt' needs a 'guidance_scale' above 1.", "negative_prompt")
        if ENCODE in self.parts:
            self.check_prompt(self.pipe.tokenizer, image.prompt, PROMPT_TOKENS, "prompt")
            self.check_prompt(self.pipe.tokenizer, image.negative_prompt, PROMPT_TOKENS, "negative_prompt")

    def condition(self, cursor: Cursor) -> Conditioning:
        image = cursor.image
        two = self.branch_count(image) == 2
        positive, mask, negative, negative_mask = self.pipe.encode_prompt(
            image.prompt,
            two,
            negative_prompt=image.negative_prompt or "",
            device=self.device,
            max_sequence_length=PROMPT_TOKENS,
        )
        return Conditioning(Embeddings(positive, mask), Embeddings(negative, negative_mask) if two else None)

    def noise(self, cursor: Cursor) -> torch.Tensor:
        height, width = self._trained(cursor)
        scale = self.pipe.vae_scale_factor
        shape = (1, self.model.config.in_channels, height // scale, width // scale)
        drawn: torch.Tensor = randn_tensor(shape, cursor.generator, self.device, self.dtype)
        return drawn

    def _trained(self, cursor: Cursor) -> tuple[int, int]:
        """Return the height and width in which a picture is made."""
        forms = FORMS.get(self.model.config.sample_size)
        if forms is None:
            return cursor.height, cursor.width
        height, width = self.pipe.image_processor.classify_height_width_bin(cursor.height, cursor.width, ratios=forms)
        return int(height), int(width)

    def batch_key(self, cursor: Cursor) -> Hashable:
        return (tuple(cursor.latents.shape), cursor.conditioning.positive.sequence.shape[1])

    def forward(self, rows: Sequence[Row]) -> torch.Tensor:
        output: torch.Tensor = self.model(
            torch.cat([self.scaled(row.cursor) for row in rows]),
            encoder_hidden_states=torch.cat([row.embeddings.sequence for row in rows]),
            encoder_attention_mask=torch.cat([row.embeddings.mask for row in rows]),
            timestep=torch.stack([row.timestep for row in rows]),
            added_cond_kwargs={"resolution": None, "aspect_ratio": None},
            return_dict=False,
        )[0]
        # A model that learnt the variance too gives it in further channels.
        return output[:, : self.model.config.in_channels]

    def pixels(self, cursor: Cursor, latents: torch.Tensor) -> Any:
        made = self.decoded(self.spatial(cursor, latents))
        return to_pixels(cut_to(made, cursor.height, cursor.width))


def cut_to(picture: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Return a picture [1, channels, height, width] scaled to cover a size, and its middle cut out in that size."""
    now = picture.shape[-2:]
    if tuple(now) == (height, width):
        return picture
    scale = max(height / now[0], width / now[1])
    size = (max(height, round(now[0] * scale)), max(width, round(now[1] * scale)))
    large = torch.nn.functional.interpolate(picture, size=size, mode="bilinear", align_corners=False)
    top, left = (size[0] - height) // 2, (size[1] - width) // 2
    return large[:, :, top : top + height, left : left + width]
