"""FLUX.2 klein: a language model reads the prompt; the tokens of pictures to edit stand behind the latents."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from diffusers.pipelines.flux2.pipeline_flux2_klein import compute_empirical_mu
from PIL import Image

from omni_actors.models.diffusion.acceleration.step_cache import BlockLayout
from omni_actors.models.diffusion.editing import EditingAdapter
from omni_actors.models.diffusion.flow import PackedLatents, set_flow_timesteps
from omni_actors.models.diffusion.rows import Conditioning, Row
from omni_actors.models.diffusion.sizes import nearest_size
from omni_actors.protocol.errors import invalid_request
from omni_actors.protocol.params import ImageGeneration
from omni_actors.worker.engine import Work
from omni_actors.worker.engines.diffusion.adapter import ENCODE
from omni_actors.worker.engines.diffusion.cursor import Cursor, Footprint

PROMPT_TOKENS = 512
"""Tokens of a prompt with its frame that the language model reads, as in diffusers' pipeline."""


@dataclass(frozen=True, slots=True)
class Embeddings:
    """The embeddings of one prompt: ``sequence`` [1, tokens, width], and the ``positions`` [1, tokens, 4]."""

    sequence: torch.Tensor
    positions: torch.Tensor


@dataclass(frozen=True, slots=True)
class PictureTokens:
    """The tokens [1, tokens, channels] of the pictures to edit, their positions [1, tokens, 4] and ``sizes``."""

    tokens: torch.Tensor
    positions: torch.Tensor
    sizes: tuple[tuple[int, int], ...]


class Flux2Klein(PackedLatents, EditingAdapter):
    """``Flux2KleinPipeline``, the base model (guided by a second branch) and the distilled one (not guided)."""

    pipeline_class = "Flux2KleinPipeline"
    blocks = BlockLayout()
    encoders = ("text_encoder", "tokenizer")
    structures = (Embeddings, PictureTokens)
    accepts = frozenset({"pictures"})
    fewest_pictures = 0
    most_pictures = 10
    default_steps = 50
    default_guidance = 4.0

    def prepare(self) -> None:
        if self.distilled:
            self.options = {**self.options, "steps": self.options["steps"] or 4, "guidance": 1.0}

    @property
    def distilled(self) -> bool:
        """Whether the model was distilled to few steps without guidance."""
        return bool(self.pipe.config.is_distilled)

    # ---- a request

    def check(self, work: Work, image: ImageGeneration) -> None:
        super().check(work, image)
        if self.distilled and image.guidance is not None and image.guidance > 1:
            raise invalid_request("This model takes no guidance scale; leave it out.", "guidance_scale")
        if image.negative_prompt is not None and self.branch_count(image) == 1:
            raise invalid_request("'negative_prompt' needs a 'guidance_scale' above 1.", "negative_prompt")
        if ENCODE in self.parts:
            for text, param in ((image.prompt, "prompt"), (image.negative_prompt, "negative_prompt")):
                framed = None if text is None else self._framed(text)
                self.check_prompt(self.pipe.tokenizer, framed, PROMPT_TOKENS, param)

    def _framed(self, text: str) -> str:
        framed: str = self.pipe.tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True, enable_thinking=False
        )
        return framed

    def footprint(self, image: ImageGeneration) -> Footprint:
        made = super().footprint(image)
        width, height = self.default_size
        assert image.width is not None
        assert image.height is not None
        share = 1 + image.pictures * width * height / (image.width * image.height)
        return Footprint(int(made.state * share), made.encode, int(made.step * share), made.decode)

    def size_for(self, sizes: Sequence[tuple[int, int]]) -> tuple[int, int]:
        width, height = self.default_size
        return nearest_size(*sizes[0], multiple=self.multiple, max_pixels=width * height) if sizes else self.size

    # ---- encoding

    def encode(self, cursors: Sequence[Cursor]) -> Iterator[Sequence[Any] | None]:
        made: list[Any] = []
        for cursor in cursors:
            image = cursor.image
            with torch.inference_mode():
                positive = self._embed(image.prompt or "")
                negative = self._embed(image.negative_prompt or "") if self.branch_count(image) == 2 else None
            yield None
            with torch.inference_mode():
                made.append(Conditioning(positive, negative, self._read(cursor)))
        yield made

    def _embed(self, text: str) -> Embeddings:
        return Embeddings(*self.pipe.encode_prompt(text, device=self.device, max_sequence_length=PROMPT_TOKENS))

    def _read(self, cursor: Cursor) -> PictureTokens | None:
        """Return the tokens of the pictures to edit."""
        if not cursor.image.pictures:
            return None
        pictures = [self._fitted(picture) for picture in self.pictures(cursor)]
        processor = self.pipe.image_processor
        tensors = [processor.preprocess(it, height=it.height, width=it.width, resize_mode="crop") for it in pictures]
        # Onto the stage's own device: weights that are offloaded lie on the host until they compute.
        latents = [self.pipe._encode_vae_image(it.to(self.device, self.pipe.vae.dtype), None) for it in tensors]
        positions = self.pipe._prepare_image_ids(latents).to(self.device)
        tokens = torch.cat([self.pipe._pack_latents(it) for it in latents], dim=1).to(self.dtype)
        return PictureTokens(tokens, positions, tuple(it.size for it in pictures))

    def _fitted(self, picture: Image.Image) -> Image.Image:
        """Return a picture of at most the model's own size, cut to whole tokens."""
        processor = self.pipe.image_processor
        width, height = self.default_size
        try:
            processor.check_image_input(picture)
        except ValueError as error:
            raise invalid_request(f"A picture cannot be edited: {error}", "image") from error
        picture = processor._resize_if_exceeds_area(picture, width * height)
        step = self.multiple
        cut: Image.Image = processor._resize_and_crop(
            picture, picture.width // step * step, picture.height // step * step
        )
        return cut

    # ---- denoising

    def noise(self, cursor: Cursor) -> torch.Tensor:
        channels = self.model.config.in_channels // 4
        latents, positions = self.pipe.prepare_latents(
            1, channels, cursor.height, cursor.width, self.dtype, self.device, cursor.generator
        )
        source: PictureTokens | None = cursor.conditioning.extra
        cursor.state["latent_positions"] = positions
        behind = [] if source is None else [source.positions]
        cursor.state["positions"] = torch.cat([positions, *behind], dim=1)
        packed: torch.Tensor = latents
        return packed

    def schedule(self, cursor: Cursor) -> None:
        set_flow_timesteps(cursor, self.device, compute_empirical_mu(cursor.latents.shape[1], cursor.steps))
        self.use_timesteps(cursor)

    def batch_key(self, cursor: Cursor) -> Hashable:
        source: PictureTokens | None = cursor.conditioning.extra
        # Rows of a forward share their positions.
        sizes = () if source is None else source.sizes
        return (cursor.width, cursor.height, sizes, cursor.conditioning.positive.sequence.shape[1])

    def forward(self, rows: Sequence[Row]) -> torch.Tensor:
        first = rows[0]
        output: torch.Tensor = self.model(
            hidden_states=torch.cat([_tokens(row.cursor) for row in rows]),
            timestep=torch.stack([row.timestep for row in rows]).to(self.dtype) / 1000,
            guidance=None,
            encoder_hidden_states=torch.cat([row.embeddings.sequence for row in rows]),
            txt_ids=first.embeddings.positions,
            img_ids=first.cursor.state["positions"],
            return_dict=False,
        )[0]
        return output[:, : first.cursor.latents.shape[1]]

    # ---- pixels

    def spatial(self, cursor: Cursor, latents: torch.Tensor) -> torch.Tensor:
        pipe, step = self.pipe, self.multiple
        vae = pipe.vae
        grid = pipe._unpack_latents_with_ids(
            latents, cursor.state["latent_positions"], cursor.height // step, cursor.width // step
        )
        mean = vae.bn.running_mean.view(1, -1, 1, 1).to(grid)
        deviation = torch.sqrt(vae.bn.running_var.view(1, -1, 1, 1) + vae.config.batch_norm_eps).to(grid)
        unpacked: torch.Tensor = pipe._unpatchify_latents(grid * deviation + mean)
        return unpacked

    def kept(self, cursor: Cursor) -> dict[str, Any]:
        return {"latent_positions": cursor.state["latent_positions"]}

    def decoded(self, latents: torch.Tensor) -> torch.Tensor:
        vae = self.pipe.vae
        picture: torch.Tensor = vae.decode(latents.to(vae.dtype), return_dict=False)[0]
        return picture


def _tokens(cursor: Cursor) -> torch.Tensor:
    source: PictureTokens | None = cursor.conditioning.extra
    return cursor.latents if source is None else torch.cat([cursor.latents, source.tokens], dim=1)
