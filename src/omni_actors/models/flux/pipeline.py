"""The pipelines of FLUX.1."""

from __future__ import annotations

from omni_actors.models.diffusion.pipeline import apart, image_pipeline
from omni_actors.models.flux.options import OPTIONS

PIPELINE = image_pipeline(
    "flux",
    "omni_actors.models.flux.adapter:Flux",
    architectures=("FluxPipeline",),
    options=OPTIONS,
    checkpoints=("black-forest-labs/FLUX.1-dev", "black-forest-labs/FLUX.1-schnell"),
    doc="FLUX.1 dev and schnell: pictures from text.",
)
APART = apart(PIPELINE)

KONTEXT = image_pipeline(
    "flux-kontext",
    "omni_actors.models.flux.kontext:FluxKontext",
    architectures=("FluxKontextPipeline",),
    options=OPTIONS,
    edits=True,
    checkpoints=("black-forest-labs/FLUX.1-Kontext-dev",),
    doc="FLUX.1 Kontext: edits of a picture, and pictures from text.",
)
