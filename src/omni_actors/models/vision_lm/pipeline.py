"""A Hugging Face vision-language model: one stage, which vLLM computes, towers and all."""

from omni_actors.models.common.chat_options import CHAT_OPTIONS
from omni_actors.pipelines.declaration import Pipeline, Port, Stage, Task
from omni_actors.pipelines.strategy import VLLM

_ADAPTER = "omni_actors.models.vision_lm.prompted:PromptedVLM"

PIPELINE = Pipeline(
    name="vision-lm",
    stages=(
        Stage(
            name="llm",
            engine=VLLM,
            adapter=_ADAPTER,
            ports=(Port("images", "media", required=False, mode="chunk", doc="The prompt's images."),),
            sections=("prompt", "sampling"),
            emits="text",
            recovery="prefix",
            vllm=_ADAPTER,
            options=CHAT_OPTIONS,
            doc="Reads a chat with images, writes text.",
        ),
    ),
    tasks=(
        Task("chat", entries={"text": "llm", "image": "llm.images"}, outputs={"text": "llm"}),
        Task("completion", entries={"text": "llm"}, outputs={"text": "llm"}),
    ),
    architectures=("Idefics3ForConditionalGeneration",),
    doc="Vision-language models, by vLLM: text and images in, text out.",
)
