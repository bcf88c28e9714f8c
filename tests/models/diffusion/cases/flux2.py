"""FLUX.2 klein beside ``Flux2KleinPipeline``."""

from __future__ import annotations

from typing import Any

from tests.models.diffusion.orders import EIGHT, Order, as_pil, drawn
from tests.models.diffusion.parity import Case

TEXT = tuple(Order(order.prompt, order.seed, order.steps, order.guidance) for order in EIGHT)
"""Eight pictures. Diffusers' pipeline knows no negative prompt but the empty one."""

EDITS = tuple(
    Order(
        order.prompt,
        order.seed,
        order.steps,
        order.guidance,
        pictures=(drawn(number, 64, 64), drawn(number + 20, 64, 64)) if number == 6 else (drawn(number, 64, 64),),
    )
    for number, order in enumerate(EIGHT)
)
"""Eight edits of a picture, one of two pictures."""


def klein(order: Order) -> dict[str, Any]:
    """Return the arguments of FLUX.2 klein."""
    return {
        "image": [as_pil(picture) for picture in order.pictures] or None,
        "prompt": order.prompt,
        "guidance_scale": order.guidance,
        "num_inference_steps": order.steps,
        "width": order.width,
        "height": order.height,
    }


CASES = tuple(
    Case(
        family="FLUX.2 klein",
        mode=mode,
        checkpoint="flux2-klein",
        adapter="omni_actors.models.flux2.adapter:Flux2Klein",
        pipeline="Flux2KleinPipeline",
        arguments=klein,
        orders=orders,
        further=mode != "text to image",
    )
    for mode, orders in (("text to image", TEXT), ("edit", EDITS))
)
