"""Z-Image beside ``ZImagePipeline``: pictures of three sizes share forwards."""

from __future__ import annotations

import dataclasses

from tests.models.diffusion.orders import EIGHT, guided
from tests.models.diffusion.parity import Case

SIZES = ((64, 64), (80, 64), (64, 96))

CASES = (
    Case(
        family="Z-Image",
        mode="text to image, mixed sizes",
        checkpoint="z-image",
        adapter="omni_actors.models.z_image.adapter:ZImage",
        pipeline="ZImagePipeline",
        arguments=guided,
        orders=tuple(
            dataclasses.replace(order, width=SIZES[number % 3][0], height=SIZES[number % 3][1])
            for number, order in enumerate(EIGHT)
        ),
    ),
)
