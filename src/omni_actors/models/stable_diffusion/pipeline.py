"""The pipelines of Stable Diffusion with a UNet."""

from __future__ import annotations

from omni_actors.models.diffusion.pipeline import apart, image_pipeline
from omni_actors.protocol.options import Option

PIPELINE = image_pipeline(
    "stable-diffusion",
    "omni_actors.models.stable_diffusion.adapter:StableDiffusion",
    architectures=("StableDiffusionPipeline", "StableDiffusionInpaintPipeline"),
    edits=True,
    options={
        "safety_checker": Option(
            True, "Whether the checkpoint's own safety checker, if it has one, refuses pictures that it flags."
        )
    },
    checkpoints=("stable-diffusion-v1-5/stable-diffusion-v1-5", "stable-diffusion-v1-5/stable-diffusion-inpainting"),
    doc="Stable Diffusion 1 and 2: pictures from text, from a picture, and inside a mask.",
)
APART = apart(PIPELINE)

XL = image_pipeline(
    "stable-diffusion-xl",
    "omni_actors.models.stable_diffusion.xl:StableDiffusionXL",
    architectures=("StableDiffusionXLPipeline", "StableDiffusionXLInpaintPipeline"),
    edits=True,
    checkpoints=("stabilityai/stable-diffusion-xl-base-1.0", "stabilityai/sdxl-turbo"),
    doc="Stable Diffusion XL: pictures from text, from a picture, and inside a mask.",
)
XL_APART = apart(XL)
