"""The pipeline of FLUX.2 klein."""

from __future__ import annotations

from omni_actors.models.diffusion.pipeline import apart, image_pipeline

PIPELINE = image_pipeline(
    "flux2-klein",
    "omni_actors.models.flux2.adapter:Flux2Klein",
    architectures=("Flux2KleinPipeline",),
    edits=True,
    checkpoints=("black-forest-labs/FLUX.2-klein-4B", "black-forest-labs/FLUX.2-klein-base-9B"),
    doc="FLUX.2 klein: pictures from text, and edits of several pictures.",
)
APART = apart(PIPELINE)
