"""The pictures that parity tests ask for, of each family the same where the family can make them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import PIL.Image

from omni_actors.protocol.params import ImageGeneration

Picture = np.ndarray[Any, np.dtype[np.uint8]]


@dataclass(frozen=True)
class Order:
    """One picture to make. ``fields`` are further fields of the section ``image``; with a mask among them the last of
    the ``pictures`` is the mask."""

    prompt: str
    seed: int
    steps: int
    guidance: float | None = 4.0
    negative: str | None = None
    width: int | None = 64
    height: int | None = 64
    pictures: tuple[Picture, ...] = ()
    fields: Mapping[str, Any] = field(default_factory=dict)

    def section(self) -> ImageGeneration:
        """Return the order as a request's section."""
        return ImageGeneration(
            prompt=self.prompt,
            negative_prompt=self.negative,
            seed=self.seed,
            steps=self.steps,
            guidance=self.guidance,
            width=self.width,
            height=self.height,
            pictures=len(self.pictures) - bool(self.fields.get("mask")),
            **self.fields,
        )


def guided(order: Order) -> dict[str, Any]:
    """Return the arguments of a pipeline with ``guidance_scale`` and negative prompts."""
    return {
        "prompt": order.prompt,
        "negative_prompt": order.negative,
        "guidance_scale": order.guidance,
        "num_inference_steps": order.steps,
        "width": order.width,
        "height": order.height,
    }


EIGHT = (
    Order("a red house by the river", 11, 6, 5.0, "rain"),
    Order("old boat", 12, 9, 3.0),
    Order("the white horse runs over the mountain while the children watch the night", 13, 4, 7.5, "dark, cold"),
    Order("a city", 14, 7, 2.0, "people and trees and houses and everything that a picture should never show"),
    Order("green fish", 15, 5, 1.0),
    Order("three birds on a tree", 16, 8, 4.5),
    Order("the end of the day", 17, 3, 6.0, "sun"),
    Order("music", 18, 10, 1.5, "noise"),
)
"""Eight pictures with other prompts, negative prompts, guidance, steps and seeds; one without a negative branch."""


def drawn(seed: int, width: int, height: int, *, alpha: bool = False) -> Picture:
    """Return a picture of a few coloured rectangles; with ``alpha`` one that is transparent in a part."""
    chance = np.random.default_rng(seed)
    picture = np.full((height, width, 4 if alpha else 3), 255, np.uint8)
    picture[..., :3] = chance.integers(0, 256, 3)
    for _ in range(4):
        left, top = int(chance.integers(0, width // 2)), int(chance.integers(0, height // 2))
        picture[top : top + height // 2, left : left + width // 2, :3] = chance.integers(0, 256, 3)
    if alpha:
        picture[height // 4 : height // 2 + seed % 8, width // 4 :, 3] = 0
    return picture


def as_pil(picture: Picture) -> PIL.Image.Image:
    """Return a picture as diffusers' pipelines take it."""
    return PIL.Image.fromarray(picture)
