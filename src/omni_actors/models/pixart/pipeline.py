"""The pipeline of PixArt-Sigma."""

from __future__ import annotations

from omni_actors.models.diffusion.pipeline import apart, image_pipeline

PIPELINE = image_pipeline(
    "pixart-sigma",
    "omni_actors.models.pixart.adapter:PixArtSigma",
    architectures=("PixArtSigmaPipeline",),
    checkpoints=("PixArt-alpha/PixArt-Sigma-XL-2-1024-MS",),
    doc="PixArt-Sigma: pictures from text.",
)
APART = apart(PIPELINE)
