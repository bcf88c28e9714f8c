"""Stable Diffusion 1.5 and XL beside diffusers' pipelines for text, pictures and masks."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
from tests.models.diffusion.orders import EIGHT, Order, as_pil, drawn, guided
from tests.models.diffusion.parity import Case

STRENGTHS = (0.8, 1.0, 0.5, 0.6, 0.9, 0.7, 0.7, 1.0)

EDITS = tuple(
    dataclasses.replace(order, pictures=(drawn(number, 64, 64),), fields={"strength": strength})
    for number, (order, strength) in enumerate(zip(EIGHT, STRENGTHS, strict=True))
)
"""Eight pictures that begin with another one, by more or less noise."""

MASKED = tuple(
    dataclasses.replace(
        order,
        pictures=(*order.pictures, drawn(number + 20, 64, 64, alpha=True)),
        fields={**order.fields, "mask": True},
    )
    for number, order in enumerate(EDITS)
)
"""The same inside a mask."""


def image_to_image(order: Order) -> dict[str, Any]:
    """Return the arguments of a pipeline that begins with a picture of the size to make."""
    arguments = guided(order)
    return {
        **{name: value for name, value in arguments.items() if name not in ("width", "height")},
        "image": as_pil(order.pictures[0]),
        "strength": order.fields["strength"],
    }


def inpaint(order: Order) -> dict[str, Any]:
    """Return the arguments of a pipeline that fills a mask."""
    white = np.where(order.pictures[1][..., 3] == 0, 255, 0).astype(np.uint8)
    return {
        **image_to_image(order),
        "mask_image": as_pil(white),
        "width": order.width,
        "height": order.height,
    }


def _cases() -> Iterator[Case]:
    for family, checkpoint, adapter, pipeline in (
        ("Stable Diffusion 1.5", "stable-diffusion", "adapter:StableDiffusion", "StableDiffusion"),
        ("Stable Diffusion XL", "stable-diffusion-xl", "xl:StableDiffusionXL", "StableDiffusionXL"),
    ):
        case = Case(
            family=family,
            mode="text to image",
            checkpoint=checkpoint,
            adapter=f"omni_actors.models.stable_diffusion.{adapter}",
            pipeline=f"{pipeline}Pipeline",
            arguments=guided,
            orders=EIGHT,
        )
        yield case
        yield dataclasses.replace(
            case,
            mode="image to image",
            pipeline=f"{pipeline}Img2ImgPipeline",
            arguments=image_to_image,
            orders=EDITS,
            rows=3.0,
            further=True,
        )
        yield dataclasses.replace(
            case,
            mode="inpaint",
            pipeline=f"{pipeline}InpaintPipeline",
            arguments=inpaint,
            orders=MASKED,
            rows=3.0,
            further=True,
        )


CASES = (
    *_cases(),
    Case(
        family="Stable Diffusion 1.5 inpainting",
        mode="inpaint",
        checkpoint="stable-diffusion-inpaint",
        adapter="omni_actors.models.stable_diffusion.adapter:StableDiffusion",
        pipeline="StableDiffusionInpaintPipeline",
        arguments=inpaint,
        orders=MASKED,
        rows=3.0,
        further=True,
    ),
)
