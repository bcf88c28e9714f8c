"""The pipeline of Z-Image."""

from __future__ import annotations

from omni_actors.models.diffusion.pipeline import apart, image_pipeline

PIPELINE = image_pipeline(
    "z-image",
    "omni_actors.models.z_image.adapter:ZImage",
    architectures=("ZImagePipeline",),
    checkpoints=("Tongyi-MAI/Z-Image-Turbo", "Tongyi-MAI/Z-Image"),
    doc="Z-Image: pictures from text; pictures of different sizes share forwards.",
)
APART = apart(PIPELINE)
