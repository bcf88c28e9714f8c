"""Qwen3-ASR: clips → features → text."""

from omni_actors.models.common.listening_pipeline import listening_pipeline
from omni_actors.models.qwen3_asr.languages import LANGUAGES

PIPELINE = listening_pipeline(
    "qwen3-asr",
    "omni_actors.models.qwen3_asr",
    architecture="Qwen3ASRForConditionalGeneration",
    checkpoints=("Qwen/Qwen3-ASR-1.7B-hf", "Qwen/Qwen3-ASR-0.6B-hf"),
    languages=tuple(LANGUAGES),
    chats=False,
    max_seconds=1200.0,
    doc="Speech recognition in thirty languages; a prompt brings words to listen for.",
)
