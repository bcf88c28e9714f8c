"""Stable Diffusion with a UNet: one adapter for versions 1, 2 and XL."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from diffusers.utils.torch_utils import randn_tensor

from omni_actors.connectors.payload import Payload
from omni_actors.models.diffusion.editing import PORT, EditingAdapter, Kept
from omni_actors.models.diffusion.karras import KarrasAdapter
from omni_actors.models.diffusion.rows import Conditioning, Row
from omni_actors.models.diffusion.sizes import nearest_size
from omni_actors.models.stable_diffusion.source import Source, SourceEncoder
from omni_actors.protocol.errors import invalid_request
from omni_actors.protocol.params import ImageGeneration
from omni_actors.worker.engine import Work
from omni_actors.worker.engines.diffusion.cursor import Cursor, Footprint


@dataclass(frozen=True, slots=True)
class Embeddings:
    """The embeddings of one prompt: ``sequence`` [1, tokens, width], and for XL ``pooled`` [1, width]."""

    sequence: torch.Tensor
    pooled: torch.Tensor | None = None


class UNetAdapter(KarrasAdapter, EditingAdapter):
    """A UNet that reads the latents of an image, its noise scaled away, and embeddings of text.

    A picture to edit begins at its own latents with the noise of a later step (``strength``). With a mask the latents
    outside are put back after every step, unless the UNet was trained to read the mask (nine channels).
    """

    denoiser = "unet"
    structures = (Embeddings, Source)
    accepts = frozenset({"pictures", "mask", "strength"})
    fewest_pictures = 0
    takes_mask = True
    default_steps = 50
    default_strength = 0.8

    @property
    def default_size(self) -> tuple[int, int]:
        size = self.model.config.sample_size
        height, width = (size, size) if isinstance(size, int) else size
        return width * self.pipe.vae_scale_factor, height * self.pipe.vae_scale_factor

    @property
    def multiple(self) -> int:
        return math.lcm(8, self.pipe.vae_scale_factor)

    @property
    def reads_mask(self) -> bool:
        """Whether the UNet reads a mask and the picture outside it, as channels beside the latents."""
        return bool(self.model.config.in_channels == 2 * self.pipe.vae.config.latent_channels + 1)

    # ---- a request

    def check(self, work: Work, image: ImageGeneration) -> None:
        super().check(work, image)
        if image.negative_prompt is not None and self.branch_count(image) == 1:
            raise invalid_request("'negative_prompt' needs a 'guidance_scale' above 1.", "negative_prompt")
        if image.mask and not image.pictures:
            raise invalid_request("A mask needs a picture to edit.", "mask")
        if self.reads_mask and not image.mask:
            raise invalid_request("This model fills a masked part of a picture: it needs 'image' and 'mask'.", "mask")
        if image.strength is not None:
            if not image.pictures:
                raise invalid_request("'strength' is for edits of a picture.", "strength")
            if not 0 < image.strength <= 1:
                raise invalid_request("'strength' must be above 0 and at most 1.", "strength")
        assert image.steps is not None
        if image.pictures and int(image.steps * self.strength(image)) < 1:
            raise invalid_request("'strength' leaves no step; ask for more steps or a greater strength.", "strength")

    def strength(self, image: ImageGeneration) -> float:
        """Return the part of the schedule that a request goes through."""
        if not image.pictures:
            return 1.0
        return (1.0 if image.mask else self.default_strength) if image.strength is None else image.strength

    def size_for(self, sizes: Sequence[tuple[int, int]]) -> tuple[int, int]:
        return nearest_size(*sizes[0], multiple=self.multiple, max_pixels=self.max_pixels) if sizes else self.size

    def trial(self) -> ImageGeneration:
        trial = super().trial()
        if self.reads_mask:
            trial.pictures, trial.mask = 1, True
        return trial

    def feed_trial(self, cursor: Cursor) -> None:
        if cursor.image.mask:
            clear = np.zeros((cursor.height, cursor.width, 4), np.uint8)
            for index, pixels in enumerate((np.ascontiguousarray(clear[..., :3]), clear)):
                self.feed([cursor], PORT, Payload("image", {"index": index}, {"pixels": pixels}), index == 1)
        else:
            super().feed_trial(cursor)

    def branch_count(self, image: ImageGeneration) -> int:
        return 1 if self.model.config.time_cond_proj_dim is not None else super().branch_count(image)

    def footprint(self, image: ImageGeneration) -> Footprint:
        assert image.width is not None
        assert image.height is not None
        size = torch.empty((), dtype=self.dtype).element_size()
        config, scale = self.model.config, self.pipe.vae_scale_factor
        points = (image.width // scale) * (image.height // scale)
        pixels = image.width * image.height * size
        text = 2 * 77 * max(768, config.cross_attention_dim) * size
        return Footprint(
            state=(6 + 3 * bool(image.pictures)) * config.in_channels * points * size + text,
            encode=(4 << 20) + bool(image.pictures) * 64 * pixels,
            step=16 * points * config.block_out_channels[0] * self.branch_count(image) * size,
            decode=64 * pixels,
        )

    # ---- encoding

    def encode(self, cursors: Sequence[Cursor]) -> Iterator[Sequence[Any] | None]:
        made: list[Conditioning] = []
        for cursor in cursors:
            with torch.inference_mode():
                negative, positive = self.embed(cursor.image)
            if cursor.image.pictures:
                yield None
            with torch.inference_mode():
                made.append(Conditioning(positive, negative, self.source(cursor)))
        yield made

    def source(self, cursor: Cursor) -> Source | None:
        """Return the client's picture and mask as the VAE and the UNet read them; ``None`` without a picture."""
        if not cursor.image.pictures:
            return None
        (picture,) = self.pictures(cursor)
        return SourceEncoder(self.pipe, self.device).encode(picture, self.mask(cursor), cursor.width, cursor.height)

    @abstractmethod
    def embed(self, image: ImageGeneration) -> tuple[Embeddings | None, Embeddings]:
        """Return the embeddings of the negative prompt, ``None`` without guidance, and of the prompt."""

    # ---- denoising

    def noise(self, cursor: Cursor) -> torch.Tensor:
        scale = self.pipe.vae_scale_factor
        channels = self.pipe.vae.config.latent_channels
        shape = (1, channels, cursor.height // scale, cursor.width // scale)
        source: Source | None = cursor.conditioning.extra
        coder = SourceEncoder(self.pipe, self.device)
        state = cursor.state
        if source is not None and not (self.reads_mask and self.strength(cursor.image) == 1.0):
            state["picture"] = coder.sample(source.picture, cursor.generator).to(self.dtype)
        noise: torch.Tensor = randn_tensor(shape, cursor.generator, self.device, self.dtype)
        if source is not None and source.mask is not None:
            state["noise"] = noise
            # Drawn also where the UNet does not read it: the draws after it are then diffusers'.
            state["outside"] = coder.sample(source.outside, cursor.generator).to(self.dtype)
            state["mask"] = source.mask.to(self.dtype)
        return noise

    def start(self, cursor: Cursor) -> None:
        strength = self.strength(cursor.image)
        scheduler, steps = cursor.scheduler, cursor.scheduler.num_inference_steps
        if cursor.image.pictures:
            first = (steps - min(int(steps * strength), steps)) * scheduler.order
            cursor.timesteps = cursor.timesteps[first:]
            cursor.steps = len(cursor.timesteps)
            if hasattr(scheduler, "set_begin_index"):
                scheduler.set_begin_index(first)
        if cursor.image.pictures and not (cursor.image.mask and strength == 1.0):
            begin = torch.stack(list(cursor.timesteps[:1]))
            cursor.latents = scheduler.add_noise(cursor.state["picture"], cursor.latents, begin)
        else:
            super().start(cursor)

    def batch_key(self, cursor: Cursor) -> Hashable:
        return (tuple(cursor.latents.shape), cursor.conditioning.positive.sequence.shape[1])

    def forward(self, rows: Sequence[Row]) -> torch.Tensor:
        output: torch.Tensor = self.model(
            torch.cat([self._input(row.cursor) for row in rows]),
            torch.stack([row.timestep for row in rows]),
            encoder_hidden_states=torch.cat([row.embeddings.sequence for row in rows]),
            timestep_cond=self._guidance_inputs(rows),
            added_cond_kwargs=self.added(rows),
            return_dict=False,
        )[0]
        return output

    def _input(self, cursor: Cursor) -> torch.Tensor:
        scaled = self.scaled(cursor)
        if not self.reads_mask:
            return scaled
        return torch.cat([scaled, cursor.state["mask"], cursor.state["outside"]], dim=1)

    def _guidance_inputs(self, rows: Sequence[Row]) -> torch.Tensor | None:
        """Return the embeddings of the guidance scales, for a model that was distilled to read them."""
        width = self.model.config.time_cond_proj_dim
        if width is None:
            return None
        scales = torch.tensor([(row.cursor.image.guidance or 0.0) - 1 for row in rows])
        embedded: torch.Tensor = self.pipe.get_guidance_scale_embedding(scales, embedding_dim=width)
        return embedded.to(self.device, self.dtype)

    def added(self, rows: Sequence[Row]) -> Mapping[str, torch.Tensor] | None:
        """Return the UNet's further conditioning."""
        return None

    def advance(self, cursor: Cursor, prediction: Any) -> None:
        super().advance(cursor, prediction)
        if not cursor.image.mask or self.reads_mask:
            return
        with torch.inference_mode():
            state, outside = cursor.state, cursor.state["picture"]
            if cursor.step + 1 < cursor.steps:
                following = torch.stack([cursor.timesteps[cursor.step + 1]])
                outside = cursor.scheduler.add_noise(outside, state["noise"], following)
            cursor.latents = (1 - state["mask"]) * outside + state["mask"] * cursor.latents

    # ---- pixels

    def kept(self, cursor: Cursor) -> dict[str, Any]:
        source: Source | None = cursor.conditioning.extra
        return {} if source is None or source.kept is None else source.kept

    def pixels(self, cursor: Cursor, latents: torch.Tensor) -> Any:
        """Return the pixels; outside a mask those of the client's picture."""
        made = super().pixels(cursor, latents)
        kept = cursor.state if cursor.conditioning is None else self.kept(cursor)
        return Kept.laid_over(made, kept) if cursor.image.mask else made
