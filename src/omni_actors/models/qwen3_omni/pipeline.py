"""media → encoder → thinker → talker → code2wav → sound. The thinker alone answers in text."""

from __future__ import annotations

import json
from pathlib import Path

from omni_actors.models.common.network import read_config, text_network
from omni_actors.models.common.omni_pipeline import omni_pipeline
from omni_actors.pipelines.declaration import PipelineFacts, Port, Stage
from omni_actors.pipelines.strategy import Network
from omni_actors.worker.engines.oneshot.options import (
    CODEC_OPTIONS,
)

SAMPLE_RATE = 24_000

_FAMILY = "omni_actors.models.qwen3_omni"

CODE2WAV = Stage(
    name="code2wav",
    engine="generation",
    adapter=f"{_FAMILY}.code2wav:Code2Wav",
    ports=(Port("codes", "codes", mode="chunk", doc="Codec frames, 12.5 a second."),),
    sections=("speech",),
    emits="audio",
    options=CODEC_OPTIONS,
    doc="Codec frames to sound.",
)


def describe(folder: Path) -> PipelineFacts:
    """Read a checkpoint's config: its voices, and whether the model speaks at all ("Thinking" checkpoints do not)."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if not config.get("enable_audio_output", True):
        return PipelineFacts(lacks=("talker", "code2wav"))
    return PipelineFacts(voices=tuple(config["talker_config"].get("speaker_id") or ()))


def network(folder: Path) -> Network:
    """The thinker's sizes."""
    return text_network(read_config(folder)["thinker_config"]["text_config"])


PIPELINE = omni_pipeline(
    "qwen3-omni",
    _FAMILY,
    CODE2WAV,
    classes="Qwen3Omni",
    max_frames=4096,  # five and a half minutes, as transformers' generate has it
    sample_rate=SAMPLE_RATE,
    architectures=("Qwen3OmniMoeForConditionalGeneration",),
    checkpoints=(
        "Qwen/Qwen3-Omni-30B-A3B-Instruct",
        "Qwen/Qwen3-Omni-30B-A3B-Thinking",
        "Qwen/Qwen3-Omni-30B-A3B-Captioner",
    ),
    voices=("ethan", "chelsie", "aiden"),
    doc="Qwen3-Omni: text, images, audio and video in, text and speech out.",
)
