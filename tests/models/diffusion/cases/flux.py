"""FLUX.1 beside ``FluxPipeline`` and ``FluxKontextPipeline``."""

from __future__ import annotations

from typing import Any

from tests.models.diffusion.orders import Order, as_pil, drawn
from tests.models.diffusion.parity import Case

DEV = (
    Order("a red house by the river", 11, 6, 5.0),
    Order("old boat", 12, 9, 3.0, "rain", fields={"true_guidance": 2.0}),
    Order("the white horse runs over the mountain while the children watch the night", 13, 4, 7.5),
    Order("a city", 14, 7, 2.0),
    Order("green fish", 15, 5, 1.0, "dark, cold", fields={"true_guidance": 4.0}),
    Order("three birds on a tree", 16, 8, None),
    Order("the end of the day", 17, 3, 6.0),
    Order("music", 18, 10, 1.5, "noise", fields={"true_guidance": 1.5}),
)
"""Eight pictures; three with a negative branch."""


KONTEXT = tuple(
    Order(
        order.prompt,
        order.seed,
        order.steps,
        order.guidance,
        order.negative,
        pictures=() if number == 6 else (drawn(number, 64, 64),),
        fields=order.fields,
    )
    for number, order in enumerate(DEV)
)
"""The same as edits of a picture; one is made from text alone."""


def dev(order: Order) -> dict[str, Any]:
    """Return the arguments of FLUX.1 dev."""
    return {
        "prompt": order.prompt,
        "negative_prompt": order.negative,
        "true_cfg_scale": order.fields.get("true_guidance", 1.0),
        "num_inference_steps": order.steps,
        "width": order.width,
        "height": order.height,
        **({} if order.guidance is None else {"guidance_scale": order.guidance}),
    }


def kontext(order: Order) -> dict[str, Any]:
    """Return the arguments of FLUX.1 Kontext, which else makes pictures of a million pixels."""
    picture = as_pil(order.pictures[0]) if order.pictures else None
    assert order.width is not None
    assert order.height is not None
    return {**dev(order), "image": picture, "max_area": order.width * order.height, "_auto_resize": False}


def schnell(order: Order) -> dict[str, Any]:
    """Return the arguments of FLUX.1 schnell."""
    return {
        "prompt": order.prompt,
        "num_inference_steps": order.steps,
        "width": order.width,
        "height": order.height,
    }


CASES = (
    Case(
        family="FLUX.1 dev",
        mode="text to image",
        checkpoint="flux",
        adapter="omni_actors.models.flux.adapter:Flux",
        pipeline="FluxPipeline",
        arguments=dev,
        orders=DEV,
        rows=3.0,
    ),
    Case(
        family="FLUX.1 schnell",
        mode="text to image",
        checkpoint="flux-schnell",
        adapter="omni_actors.models.flux.adapter:Flux",
        pipeline="FluxPipeline",
        arguments=schnell,
        orders=tuple(Order(order.prompt, order.seed, order.steps, None) for order in DEV),
        rows=2.0,
        negative=False,
        further=True,
    ),
    Case(
        family="FLUX.1 Kontext",
        mode="edit",
        checkpoint="flux-kontext",
        adapter="omni_actors.models.flux.kontext:FluxKontext",
        pipeline="FluxKontextPipeline",
        arguments=kontext,
        orders=KONTEXT,
        rows=2.0,
        further=True,
    ),
)
