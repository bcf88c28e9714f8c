"""The digits model in the diffusion engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from omni_actors.models.diffusion.pixels import Pixels, to_pixels
from omni_actors.models.diffusion.rows import Conditioning
from omni_actors.models.diffusion.sizes import refusal
from omni_actors.models.digits.network import SIDE, load_pipe
from omni_actors.models.digits.text import PromptEncoder
from omni_actors.models.sd3.adapter import Embeddings, StableDiffusion3
from omni_actors.protocol.errors import invalid_request
from omni_actors.protocol.params import ImageGeneration
from omni_actors.worker.byte_cache import ByteCache
from omni_actors.worker.engine import Work
from omni_actors.worker.engines.diffusion.cursor import Cursor

DEFAULT_SIDE = 64
LARGEST_SIDE = 512

_ENCODE_AT_ONCE = 8
"""Prompts of one slice of encoding."""


class Digits(StableDiffusion3):
    """Handwritten digits of 8 x 8 pixels, each pixel enlarged to a square: latents are pixels."""

    default_steps = 20
    default_guidance = 3.0

    def load_pipe(self) -> Any:
        pipe = load_pipe(Path(self.hello.model or ""), self.dtype)
        return pipe.to(self.runtime.host_device)

    def prepare(self) -> None:
        folder = Path(self.hello.model or "", self.hello.options["text_encoder"])
        self._encoder = PromptEncoder(folder, self.device)
        self._known: ByteCache[str, Embeddings] = ByteCache(self.hello.options["prompt_cache_bytes"])

    @property
    def default_size(self) -> tuple[int, int]:
        return DEFAULT_SIDE, DEFAULT_SIDE

    @property
    def multiple(self) -> int:
        return SIDE

    @property
    def max_side(self) -> int | None:
        return None  # a larger picture has the same latents

    @property
    def max_pixels(self) -> int:
        return int(self.options["max_pixels"] or LARGEST_SIDE**2)

    def check(self, work: Work, image: ImageGeneration) -> None:
        super(StableDiffusion3, self).check(work, image)  # whose own check is of tokenizers that this model lacks
        assert image.width is not None
        assert image.height is not None
        if image.width != image.height:
            side = min(image.width, image.height)
            raise refusal(image.width, image.height, (side, side))
        most = self.hello.options["max_prompt_tokens"]
        for name in ("prompt", "negative_prompt"):
            text = getattr(image, name)
            if text is not None and self._encoder.count(text) > most:
                raise invalid_request(f"'{name}' has more than {most} tokens.", name)

    def tokens(self, image: ImageGeneration) -> int:
        return (SIDE // 2) ** 2

    # ---- prompts

    def encode(self, cursors: Sequence[Cursor]) -> Iterator[Sequence[Any] | None]:
        found: dict[str, Embeddings] = {}
        new: list[str] = []
        for text in dict.fromkeys(text for cursor in cursors for text in self._texts(cursor)):
            known = self._known.get(text)
            if known is None:
                new.append(text)
            else:
                found[text] = known
        for first in range(0, len(new), _ENCODE_AT_ONCE):
            part = new[first : first + _ENCODE_AT_ONCE]
            for text, made in zip(part, self._encoder.encode(part), strict=True):
                found[text] = Embeddings(made.sequence.to(self.dtype), made.pooled.to(self.dtype))
            if first + _ENCODE_AT_ONCE < len(new):
                yield None
        for text in new:
            embeddings = found[text]
            self._known.put(text, embeddings, embeddings.sequence.nbytes + embeddings.pooled.nbytes)
        yield [
            Conditioning(*(found[text] for text in self._texts(cursor)))  # the positive one, then the negative one
            for cursor in cursors
        ]

    def _texts(self, cursor: Cursor) -> tuple[str, ...]:
        image = cursor.image
        prompt = image.prompt or ""
        return (prompt, image.negative_prompt or "") if self.branch_count(image) == 2 else (prompt,)

    def counters(self) -> dict[str, float]:
        known = self._known
        hits = {"prompt_cache_hits_total": known.hits, "prompt_cache_misses_total": known.misses}
        return {**super().counters(), **hits}

    # ---- pixels

    def noise(self, cursor: Cursor) -> torch.Tensor:
        side = SIDE * self.pipe.vae_scale_factor
        latents: torch.Tensor = self.pipe.prepare_latents(
            1, 1, side, side, self.dtype, self.device, cursor.generator, None
        )
        return latents

    def preview(self, cursor: Cursor, prediction: Any) -> Pixels:
        with torch.inference_mode():
            return self.pixels(cursor, self.clean(cursor, prediction))

    def pixels(self, cursor: Cursor, latents: torch.Tensor) -> Pixels:
        times = cursor.width // SIDE
        array: Pixels = np.repeat(np.repeat(to_pixels(latents), times, 0), times, 1)
        return array
