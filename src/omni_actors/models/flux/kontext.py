"""FLUX.1 Kontext: the tokens of a picture to edit stand behind those of the picture that is made."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from diffusers.pipelines.flux.pipeline_flux_kontext import PREFERRED_KONTEXT_RESOLUTIONS

from omni_actors.models.diffusion.editing import EditingAdapter
from omni_actors.models.diffusion.rows import Conditioning
from omni_actors.models.diffusion.sizes import nearest_size
from omni_actors.models.flux.adapter import Embeddings, Flux
from omni_actors.protocol.params import ImageGeneration
from omni_actors.worker.engines.diffusion.cursor import Cursor, Footprint

TRAINED = 1024 * 1024
"""Pixels of the sizes that the model was trained for."""


@dataclass(frozen=True, slots=True)
class PictureTokens:
    """The tokens [1, rows x columns, channels] of the picture to edit."""

    tokens: torch.Tensor
    rows: int
    columns: int


class FluxKontext(Flux, EditingAdapter):
    """``FluxKontextPipeline``: edits of one picture, and pictures from text."""

    pipeline_class = "FluxKontextPipeline"
    structures = (Embeddings, PictureTokens)
    accepts = frozenset({"pictures", "true_guidance"})
    fewest_pictures = 0

    def footprint(self, image: ImageGeneration) -> Footprint:
        made = super().footprint(image)
        if not image.pictures:
            return made
        # The picture is as large as the model's own size, whatever is made.
        width, height = self.default_size
        assert image.width is not None
        assert image.height is not None
        share = 1 + width * height / (image.width * image.height)
        return Footprint(
            state=int(made.state * share),
            encode=made.encode + 64 * width * height * torch.empty((), dtype=self.dtype).element_size(),
            step=int(made.step * share),
            decode=made.decode,
        )

    def condition(self, cursor: Cursor) -> Conditioning:
        made = super().condition(cursor)
        if not cursor.image.pictures:
            return made
        (picture,) = self.pictures(cursor)
        width, height = self.read_size(*picture.size)
        processor = self.pipe.image_processor
        pixels = processor.preprocess(processor.resize(picture, height, width), height, width)
        latents = self.pipe._encode_vae_image(pixels.to(self.device, self.pipe.vae.dtype), None).to(self.dtype)
        rows, columns = latents.shape[2:]
        tokens = self.pipe._pack_latents(latents, 1, latents.shape[1], rows, columns)
        return Conditioning(made.positive, made.negative, PictureTokens(tokens, rows // 2, columns // 2))

    def size_for(self, sizes: Sequence[tuple[int, int]]) -> tuple[int, int]:
        return self.read_size(*sizes[0]) if sizes else self.size

    def read_size(self, width: int, height: int) -> tuple[int, int]:
        """Return the width and height in which a picture is read: the trained size nearest in form."""
        own_width, own_height = self.default_size
        if own_width * own_height == TRAINED:
            form = width / height
            _, width, height = min((abs(form - w / h), w, h) for w, h in PREFERRED_KONTEXT_RESOLUTIONS)
        return nearest_size(width, height, multiple=self.multiple, max_pixels=own_width * own_height)

    def noise(self, cursor: Cursor) -> torch.Tensor:
        channels = self.model.config.in_channels // 4
        latents, _, ids, _ = self.pipe.prepare_latents(
            None, 1, channels, cursor.height, cursor.width, self.dtype, self.device, cursor.generator
        )
        source: PictureTokens | None = cursor.conditioning.extra
        if source is not None:
            behind = self.pipe._prepare_latent_image_ids(1, source.rows, source.columns, self.device, self.dtype)
            behind[..., 0] = 1
            ids = torch.cat([ids, behind])
        cursor.state["ids"] = ids
        packed: torch.Tensor = latents
        return packed

    def batch_key(self, cursor: Cursor) -> Hashable:
        source: PictureTokens | None = cursor.conditioning.extra
        # Rows of a forward share their positions: pictures of equal sizes.
        shape = None if source is None else (source.rows, source.columns)
        return (super().batch_key(cursor), shape)

    def tokens_in(self, cursor: Cursor) -> torch.Tensor:
        source: PictureTokens | None = cursor.conditioning.extra
        return cursor.latents if source is None else torch.cat([cursor.latents, source.tokens], dim=1)
