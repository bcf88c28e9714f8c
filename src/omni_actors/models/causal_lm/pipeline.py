"""A Hugging Face causal language model: one stage, nothing declared by its folder."""

from omni_actors.pipelines.declaration import Pipeline, Stage, Task

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
            doc="Reads a prompt or a chat, writes text.",
        ),
    ),
    tasks=(
        Task("chat", entries={"text": "llm"}, outputs={"text": "llm"}),
        Task("completion", entries={"text": "llm"}, outputs={"text": "llm"}),
    ),
    doc="Any *ForCausalLM folder: chat and completion.",
)
