"""PixArt-Sigma beside ``PixArtSigmaPipeline``."""

from __future__ import annotations

from typing import Any

from tests.models.diffusion.orders import EIGHT, Order, guided
from tests.models.diffusion.parity import Case


def _arguments(order: Order) -> dict[str, Any]:
    return {**guided(order), "negative_prompt": order.negative or "", "use_resolution_binning": False}


CASES = (
    Case(
        family="PixArt-Sigma",
        mode="text to image",
        checkpoint="pixart-sigma",
        adapter="omni_actors.models.pixart.adapter:PixArtSigma",
        pipeline="PixArtSigmaPipeline",
        arguments=_arguments,
        orders=EIGHT,
    ),
)
