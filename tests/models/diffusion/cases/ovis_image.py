"""Ovis-Image beside ``OvisImagePipeline``."""

from __future__ import annotations

from tests.models.diffusion.orders import EIGHT, guided
from tests.models.diffusion.parity import Case

CASES = (
    Case(
        family="Ovis-Image",
        mode="text to image",
        checkpoint="ovis-image",
        adapter="omni_actors.models.ovis_image.adapter:OvisImage",
        pipeline="OvisImagePipeline",
        arguments=guided,
        orders=EIGHT,
    ),
)
