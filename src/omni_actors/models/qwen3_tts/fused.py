"""The stages in one worker: the same ones, one after the other."""

from omni_actors.models.qwen3_tts.pipeline import CODEC, TALKER, VOICE
from omni_actors.worker.engines.chained import Link

_AUTOREGRESSIVE = "omni_actors.worker.engines.autoregressive:AutoregressiveEngine"
_GENERATION = "omni_actors.worker.engines.generation:GenerationEngine"

LINKS = (
    Link(VOICE.name, _GENERATION, VOICE.adapter, optional=True),
    Link(TALKER.name, _AUTOREGRESSIVE, TALKER.adapter, TALKER.ports[0].name),
    Link(CODEC.name, _GENERATION, CODEC.adapter, CODEC.ports[0].name),
)
