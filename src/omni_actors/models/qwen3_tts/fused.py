"""Talker and codec in one worker: the same two, one after the other."""

from omni_actors.models.qwen3_tts.pipeline import CODEC, TALKER
from omni_actors.worker.engines.chained import Link

LINKS = (
    Link(TALKER.name, "omni_actors.worker.engines.autoregressive:AutoregressiveEngine", TALKER.adapter),
    Link(CODEC.name, "omni_actors.worker.engines.generation:GenerationEngine", CODEC.adapter, CODEC.ports[0].name),
)
