"""The pipeline of the digits model."""

from __future__ import annotations

from dataclasses import replace

from omni_actors.models.diffusion.pipeline import image_pipeline
from omni_actors.protocol.options import Option

PIPELINE = replace(
    image_pipeline(
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
    ),
    weights="omni_actors.models.weights.cache:digits_folder",
)

STAGE = PIPELINE.stages[0]
"""The stage that makes the pictures."""
