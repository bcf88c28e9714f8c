"""The pipeline of Stable Diffusion 3."""

from __future__ import annotations

from omni_actors.models.diffusion.pipeline import apart, image_pipeline

PIPELINE = image_pipeline(
    "stable-diffusion-3",
    "omni_actors.models.sd3.adapter:StableDiffusion3",
    architectures=("StableDiffusion3Pipeline",),
    doc="Stable Diffusion 3 and 3.5: pictures from text.",
)
APART = apart(PIPELINE)
