"""The stages in one worker: the same ones, one after the other."""

from omni_actors.models.qwen3_tts.pipeline import CODEC, TALKER, VOICE
from omni_actors.worker.engines.chained import ChainLink

LINKS = (
    ChainLink(VOICE.name, "generation", VOICE.adapter, optional=True),
    ChainLink(TALKER.name, "autoregressive", TALKER.adapter, TALKER.ports[0].name),
    ChainLink(CODEC.name, "generation", CODEC.adapter, CODEC.ports[0].name),
)
