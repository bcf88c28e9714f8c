"""The pipeline of the digits model."""

from __future__ import annotations

from dataclasses import replace

from omni_actors.models.diffusion.pipeline import image_pipeline
from omni_actors.protocol.options import Option

_MADE = image_pipeline(
    "digits",
    "omni_actors.models.digits.adapter:Digits",
    architectures=("DigitsPipeline",),
    options={
        "text_encoder": Option(
            "../llm", "Folder of the language model that reads prompts, relative to the stage's folder."
        ),
        "max_prompt_tokens": Option(256, "Most tokens of a prompt; longer prompts are refused.", least=1),
        "prompt_cache_bytes": Option(
            4 << 20, "Memory for the embeddings of earlier prompts; a prompt takes some 30 kB.", least=0
        ),
    },
    doc="Handwritten digits from text; the model is trained on this machine.",
)

STAGE = replace(_MADE.stages[0], weight=0.0)  # one thread: so small a model gains nothing by a second one
"""The stage that makes the pictures."""

PIPELINE = replace(_MADE, stages=(STAGE, *_MADE.stages[1:]), weights="omni_actors.models.weights.cache:digits_folder")
