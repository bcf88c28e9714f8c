"""The pipeline of style transfer."""

from __future__ import annotations

from dataclasses import replace

from omni_actors.models.diffusion.pipeline import image_pipeline

_EDITOR = image_pipeline(
    "style",
    "omni_actors.models.style.adapter:Style",
    architectures=(),
    edits=True,
    generates=False,
    doc="A picture in one of 26 styles, or in the style of another picture, in one step on a CPU.",
)

PIPELINE = replace(
    _EDITOR,
    stages=tuple(
        replace(stage, host=True, dtypes=("float32",)) if stage.name == "image" else stage for stage in _EDITOR.stages
    ),
    weights="omni_actors.models.weights.cache:style_folder",
)
