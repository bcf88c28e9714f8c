"""A Hugging Face causal language model: one stage, without declarations by the folder."""

from __future__ import annotations

from pathlib import Path

from omni_actors.models.common.chat_options import CHAT_OPTIONS
from omni_actors.models.common.network import read_config, text_network
from omni_actors.pipelines.declaration import Pipeline, Stage, Task
from omni_actors.pipelines.strategy import Network

MODEL_TYPES = frozenset({"llama", "mistral", "qwen2", "qwen3"})
"""Those whose layers are written out (:mod:`omni_actors.models.causal_lm.fused`), and can be split over ranks."""


def network(folder: Path) -> Network:
    """Return the numbers that parallel degrees must divide; other architectures run by transformers' own layers, on one
    device."""
    config = read_config(folder)
    kind = config.get("model_type")
    if kind not in MODEL_TYPES:
        known = ", ".join(sorted(MODEL_TYPES))
        why = f"a model of type '{kind}' runs by transformers' own layers, on one device; those of {known} can be split"
        return text_network(config, {"tensor": why, "expert": why})
    return text_network(config)


PIPELINE = Pipeline(
    name="causal-lm",
    stages=(
        Stage(
            name="llm",
            engine="autoregressive",
            adapter="omni_actors.models.causal_lm.adapter:CausalLM",
            sections=("prompt", "sampling"),
            emits="text",
            separable=True,
            network="omni_actors.models.causal_lm.pipeline:network",
            vllm="omni_actors.models.causal_lm.prompted:PromptedLM",
            options=CHAT_OPTIONS,
            doc="Reads a prompt or a chat, writes text.",
        ),
    ),
    tasks=(
        Task("chat", entries={"text": "llm"}, outputs={"text": "llm"}),
        Task("completion", entries={"text": "llm"}, outputs={"text": "llm"}),
    ),
    doc="Any *ForCausalLM folder: chat and completion.",
)
