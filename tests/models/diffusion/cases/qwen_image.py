"""Qwen-Image beside its four pipelines in diffusers."""

from __future__ import annotations

import dataclasses
from typing import Any

from tests.models.diffusion.orders import EIGHT, Order, as_pil, drawn
from tests.models.diffusion.parity import Case

from omni_actors.models.qwen_image.processor import picture_processor

AREA = 64 * 64
"""Pixels to which pictures are scaled here; diffusers has 1024 x 1024 in its code."""

_MODULES = "diffusers.pipelines.qwenimage.pipeline_qwenimage_"


def texts(order: Order) -> dict[str, Any]:
    """Return the arguments of ``QwenImagePipeline``."""
    return {
        "prompt": order.prompt,
        "negative_prompt": order.negative or " ",
        "true_cfg_scale": order.guidance,
        "num_inference_steps": order.steps,
        "width": order.width,
        "height": order.height,
    }


def edits(order: Order) -> dict[str, Any]:
    """Return the arguments of the pipelines for edits."""
    pictures = [as_pil(picture) for picture in order.pictures]
    return {**texts(order), "image": pictures if len(pictures) > 1 else pictures[0]}


def layered(order: Order) -> dict[str, Any]:
    """Return the arguments of ``QwenImageLayeredPipeline``."""
    arguments = texts(order)
    del arguments["width"], arguments["height"]
    picture = as_pil(order.pictures[0]).convert("RGBA")
    return {**arguments, "image": picture, "layers": order.fields["layers"]}


def masked(order: Order) -> dict[str, Any]:
    """Return the arguments of ``QwenImageEditInpaintPipeline``, in which white is to be changed."""
    picture, mask = order.pictures
    arguments = texts(order)
    del arguments["width"], arguments["height"]
    white = as_pil((mask[..., 3] == 0).astype("uint8") * 255)
    return {**arguments, "image": as_pil(picture), "mask_image": white, "strength": order.fields["strength"]}


def _with(order: Order, number: int, **changes: Any) -> Order:
    return dataclasses.replace(order, pictures=(drawn(number, 64, 64),), **changes)


ONE = tuple(_with(order, number) for number, order in enumerate(EIGHT))
SEVERAL = tuple(
    dataclasses.replace(
        order, width=None, height=None, pictures=tuple(drawn(10 * number + it, 64, 64) for it in range(1 + number % 2))
    )
    for number, order in enumerate(EIGHT)
)
LAYERS = tuple(
    _with(order, number, width=None, height=None, fields={"layers": 2}) for number, order in enumerate(EIGHT)
)
MASKED = tuple(
    dataclasses.replace(
        order,
        width=None,
        height=None,
        pictures=(drawn(number, 64, 64), drawn(100 + number, 64, 64, alpha=True)),
        fields={"mask": True, "strength": (1.0, 0.8)[number % 2]},
    )
    for number, order in enumerate(EIGHT)
)
_SCALED = {"picture_pixels": AREA, "seen_pixels": AREA}


def _case(mode: str, variant: str, module: str, **others: Any) -> Case:
    name = others.pop("name", variant.title().replace("_", ""))
    return Case(
        family="Qwen-Image",
        mode=mode,
        checkpoint=f"qwen-image-{variant.replace('_', '-')}",
        adapter=f"omni_actors.models.qwen_image.{module}:QwenImage{variant.title().replace('_', '')}",
        pipeline=f"QwenImage{name}Pipeline",
        given={"processor": picture_processor},
        scaled=(f"{_MODULES}{others.pop('scaled')}", AREA),
        **others,
    )


CASES = (
    Case(
        family="Qwen-Image",
        mode="text to image",
        checkpoint="qwen-image",
        adapter="omni_actors.models.qwen_image.adapter:QwenImage",
        pipeline="QwenImagePipeline",
        arguments=texts,
        orders=EIGHT,
    ),
    _case("edit", "edit", "edit", scaled="edit", arguments=edits, orders=ONE, options=_SCALED),
    _case(
        "edit with a mask",
        "edit",
        "edit",
        name="EditInpaint",
        scaled="edit_inpaint",
        arguments=masked,
        orders=MASKED,
        further=True,
        options=_SCALED,
    ),
    _case(
        "edit of several pictures",
        "edit_plus",
        "edit",
        scaled="edit_plus",
        arguments=edits,
        orders=SEVERAL,
        options=_SCALED,
        rows=3.0,  # pictures with other numbers of inputs share no forward
    ),
    _case(
        "layers",
        "layered",
        "layered",
        scaled="layered",
        arguments=layered,
        orders=LAYERS,
        options={"picture_pixels": AREA},
        output="np",  # diffusers 0.42 fails to return the latents of layers
    ),
)
