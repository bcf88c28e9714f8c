"""The pipeline for diffusers folders whose class has no family of its own."""

from __future__ import annotations

from omni_actors.models.diffusion.pipeline import image_pipeline

PIPELINE = image_pipeline(
    "diffusers",
    "omni_actors.models.diffusers_generic.adapter:GenericDiffusers",
    architectures=(),
    edits=True,
    doc="Any diffusers folder: its pipeline runs in its own call, request by request, step by step.",
)
