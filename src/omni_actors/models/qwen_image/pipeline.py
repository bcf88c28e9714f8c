"""The pipelines of Qwen-Image."""

from __future__ import annotations

from omni_actors.models.diffusion.pipeline import apart, image_pipeline
from omni_actors.models.qwen_image.options import EDIT_OPTIONS, LAYERED_OPTIONS

_FAMILY = "omni_actors.models.qwen_image"

PIPELINE = image_pipeline(
    "qwen-image",
    f"{_FAMILY}.adapter:QwenImage",
    architectures=("QwenImagePipeline",),
    checkpoints=("Qwen/Qwen-Image", "Qwen/Qwen-Image-2512"),
    doc="Qwen-Image: pictures from text.",
)
APART = apart(PIPELINE)

EDIT = image_pipeline(
    "qwen-image-edit",
    f"{_FAMILY}.edit:QwenImageEdit",
    architectures=("QwenImageEditPipeline", "QwenImageEditInpaintPipeline"),
    checkpoints=("Qwen/Qwen-Image-Edit",),
    edits=True,
    generates=False,
    options=EDIT_OPTIONS,
    doc="Qwen-Image-Edit: changes one picture, or the part of it that a mask names.",
)
EDIT_APART = apart(EDIT)

EDIT_PLUS = image_pipeline(
    "qwen-image-edit-plus",
    f"{_FAMILY}.edit:QwenImageEditPlus",
    architectures=("QwenImageEditPlusPipeline",),
    checkpoints=("Qwen/Qwen-Image-Edit-2509", "Qwen/Qwen-Image-Edit-2511"),
    edits=True,
    generates=False,
    options=EDIT_OPTIONS,
    doc="Qwen-Image-Edit-2509 and later: makes a picture from several.",
)
EDIT_PLUS_APART = apart(EDIT_PLUS)

LAYERED = image_pipeline(
    "qwen-image-layered",
    f"{_FAMILY}.layered:QwenImageLayered",
    architectures=("QwenImageLayeredPipeline",),
    checkpoints=("Qwen/Qwen-Image-Layered",),
    edits=True,
    generates=False,
    options=LAYERED_OPTIONS,
    doc="Qwen-Image-Layered: takes a picture apart into layers with transparency.",
)
LAYERED_APART = apart(LAYERED)
