"""The pipeline of Ovis-Image."""

from __future__ import annotations

from omni_actors.models.diffusion.pipeline import image_pipeline

PIPELINE = image_pipeline(
    "ovis-image",
    "omni_actors.models.ovis_image.adapter:OvisImage",
    architectures=("OvisImagePipeline",),
    checkpoints=("AIDC-AI/Ovis-Image-7B",),
    doc="Ovis-Image: pictures from text, with text in them.",
)
