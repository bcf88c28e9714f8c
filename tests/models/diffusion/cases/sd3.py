"""Stable Diffusion 3 beside ``StableDiffusion3Pipeline``."""

from __future__ import annotations

from tests.models.diffusion.orders import EIGHT, guided
from tests.models.diffusion.parity import Case

CASES = (
    Case(
        family="Stable Diffusion 3",
        mode="text to image",
        checkpoint="sd3",
        adapter="omni_actors.models.sd3.adapter:StableDiffusion3",
        pipeline="StableDiffusion3Pipeline",
        arguments=guided,
        orders=EIGHT,
    ),
)
