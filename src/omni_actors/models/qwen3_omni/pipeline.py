"""media → encoder → thinker → talker → code2wav → sound. The thinker alone answers in text."""

from __future__ import annotations

import json
from pathlib import Path

from omni_actors.models.common.codec_options import CODEC_DEFAULTS, CODEC_DOC, CODEC_LEAST, CODEC_TYPES
from omni_actors.pipelines.declaration import Edge, Pipeline, PipelineFacts, Port, Stage, Task

SAMPLE_RATE = 24_000

_FAMILY = "omni_actors.models.qwen3_omni"

ENCODER = Stage(
    name="encoder",
    engine="generation",
    adapter=f"{_FAMILY}.encoder:Encoder",
    ports=(Port("media", "media", mode="chunk", doc="The request's images, clips and videos, in order."),),
    defaults={"cache_bytes": 64 << 20, "image_max_pixels": None, "video_max_pixels": None},
    options_doc={
        "cache_bytes": "Memory for the features of media that were encoded last: the same one again costs nothing.",
        "image_max_pixels": "Most pixels of an image after resizing; the checkpoint's own bound, if not set.",
        "video_max_pixels": "Most pixels of a video's frame after resizing; the processor's own bound, if not set.",
    },
    options_type={"image_max_pixels": int, "video_max_pixels": int},
    options_least={"image_max_pixels": 1024, "video_max_pixels": 1024},
    doc="The towers that look and listen: media to features.",
)

THINKER = Stage(
    name="thinker",
    engine="autoregressive",
    adapter=f"{_FAMILY}.thinker:Qwen3OmniThinker",
    ports=(Port("features", "features", required=False, mode="chunk", doc="Of the prompt's media, one payload each."),),
    sections=("prompt", "sampling", "speech"),
    emits="text",
    separable=True,
    weight=4.0,
    doc="Reads text and features, writes text.",
)

TALKER = Stage(
    name="talker",
    engine="autoregressive",
    adapter=f"{_FAMILY}.talker:Qwen3OmniTalker",
    ports=(Port("states", "hidden", mode="chunk", doc="What the thinker read and writes, as it goes."),),
    sections=("speech", "sampling"),
    weight=2.0,
    defaults={"max_tokens": 4096},  # of frames: five and a half minutes, as transformers' generate has it
    doc="Says what the thinker writes, while it writes, in codec frames.",
)

CODE2WAV = Stage(
    name="code2wav",
    engine="generation",
    adapter=f"{_FAMILY}.code2wav:Code2Wav",
    ports=(Port("codes", "codes", mode="chunk", doc="Codec frames, 12.5 a second."),),
    sections=("speech",),
    emits="audio",
    defaults=CODEC_DEFAULTS,
    options_doc=CODEC_DOC,
    options_type=CODEC_TYPES,
    options_least=CODEC_LEAST,
    doc="Codec frames to sound.",
)


def describe(folder: Path) -> PipelineFacts:
    """What a checkpoint's config says: its voices, and whether it speaks at all (the "Thinking" ones do not)."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if not config.get("enable_audio_output", True):
        return PipelineFacts(lacks=("talker", "code2wav"))
    return PipelineFacts(voices=tuple(config["talker_config"].get("speaker_id") or ()))


PIPELINE = Pipeline(
    name="qwen3-omni",
    stages=(ENCODER, THINKER, TALKER, CODE2WAV),
    edges=(
        Edge("encoder", "thinker.features", "features", mode="chunk", capacity=8),
        Edge("thinker", "talker.states", "hidden", mode="chunk"),
        Edge("talker", "code2wav.codes", "codes", mode="chunk"),
    ),
    tasks=(
        Task(
            "chat",
            entries={"text": "thinker", **dict.fromkeys(("audio", "image", "video"), "encoder.media")},
            outputs={"text": "thinker", "audio": "code2wav"},
        ),
        Task("completion", entries={"text": "thinker"}, outputs={"text": "thinker"}),
        Task("speech", entries={"text": "thinker"}, outputs={"audio": "code2wav"}),
    ),
    architectures=("Qwen3OmniMoeForConditionalGeneration",),
    checkpoints=(
        "Qwen/Qwen3-Omni-30B-A3B-Instruct",
        "Qwen/Qwen3-Omni-30B-A3B-Thinking",
        "Qwen/Qwen3-Omni-30B-A3B-Captioner",
    ),
    describe=f"{_FAMILY}.pipeline:describe",
    voices=("ethan", "chelsie", "aiden"),
    sample_rate=SAMPLE_RATE,
    speech_fields=(
        "max_tokens",
        "initial_chunk_frames",
        "temperature",
        "top_k",
        "top_p",
        "repetition_penalty",
    ),
    doc="Qwen3-Omni: text, images, audio and video in, text and speech out.",
)
