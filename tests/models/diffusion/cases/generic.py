"""The generic adapter beside the pipelines that it calls: request by request."""

from __future__ import annotations

import dataclasses
from typing import Any

from tests.models.diffusion.orders import EIGHT, Order, guided
from tests.models.diffusion.parity import Case

GENERIC = "omni_actors.models.diffusers_generic.adapter:GenericDiffusers"


def consistent(order: Order) -> dict[str, Any]:
    """Return the arguments of ``LatentConsistencyModelPipeline``, which has no negative prompt."""
    arguments = guided(order)
    del arguments["negative_prompt"]
    return arguments


CASES = (
    Case(
        family="any other (here latent consistency)",
        mode="text to image",
        checkpoint="latent-consistency",
        adapter=GENERIC,
        pipeline="LatentConsistencyModelPipeline",
        arguments=consistent,
        orders=tuple(dataclasses.replace(order, negative=None) for order in EIGHT),
        step_batched=False,
        rows=1.0,
        negative=False,
    ),
)
