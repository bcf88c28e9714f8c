"""Text → talker → codec → sound, in two workers, or in one (``qwen3-tts-fused``)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from omni_actors.models.common.codec_options import CODEC_DEFAULTS, CODEC_DOC, CODEC_LEAST, CODEC_TYPES
from omni_actors.models.qwen3_tts.folder import Folder
from omni_actors.pipelines.declaration import Edge, Pipeline, PipelineFacts, Port, Stage, Task
from omni_actors.pipelines.limits import with_engine_options

_FAMILY = "omni_actors.models.qwen3_tts"

SAMPLE_RATE = 24_000

DEFAULTS: dict[str, Any] = {
    "max_tokens": 8192,
    "non_streaming_mode": None,
    "max_reference_s": 30.0,
    "clip_cache_mib": 256.0,
}
"""Options of the talker, beside those of its engine."""

_DOC = {
    "max_tokens": "Most frames of an answer whose request names no limit, 12.5 of them a second; what the checkpoint's "
    "generation config says.",
    "non_streaming_mode": "Whether the talker reads the whole text before its first frame, or a piece with each; null "
    "for what the model's own code does: the whole, but for clones.",
    "max_reference_s": "Longest clip of a voice to clone, in seconds.",
    "clip_cache_mib": "Memory for clips that were heard, with what was made of them, in MiB.",
}
_TYPES: dict[str, type] = {"non_streaming_mode": bool}
_LEAST: dict[str, float] = {"max_tokens": 1, "max_reference_s": 1, "clip_cache_mib": 0}

_REFERENCE = Port("reference", "pcm", required=False, mode="chunk", doc="The clip of a voice to clone, mono.")

TALKER = Stage(
    name="talker",
    engine="autoregressive",
    adapter=f"{_FAMILY}.talker:Qwen3TTSTalker",
    ports=(_REFERENCE,),
    sections=("speech",),
    weight=4.0,
    defaults=DEFAULTS,
    options_doc=_DOC,
    options_type=_TYPES,
    options_least=_LEAST,
    doc="Writes codec frames, 12.5 a second of speech.",
)

CODEC = Stage(
    name="codec",
    engine="generation",
    adapter=f"{_FAMILY}.codec:Qwen3TTSCodec",
    ports=(Port("codes", "codes", mode="chunk", doc="Frames, as they are written."),),
    sections=("speech",),
    emits="audio",
    dtypes=("float32",),
    weight=2.0,
    defaults=CODEC_DEFAULTS,
    options_doc=CODEC_DOC,
    options_type=CODEC_TYPES,
    options_least=CODEC_LEAST,
    doc="Turns codec frames into sound.",
)

CHECKPOINTS = (
    "Qwen/Qwen3-TTS-12Hz-1.7B-CustomVoice",
    "Qwen/Qwen3-TTS-12Hz-1.7B-VoiceDesign",
    "Qwen/Qwen3-TTS-12Hz-1.7B-Base",
    "Qwen/Qwen3-TTS-12Hz-0.6B-CustomVoice",
    "Qwen/Qwen3-TTS-12Hz-0.6B-Base",
)

_SAMPLING = ("temperature", "top_k", "top_p", "repetition_penalty")
_CLONING = ("ref_text", "x_vector_only")
FIELDS = ("language", "instructions", "task_type", "max_tokens", "initial_chunk_frames", *_SAMPLING)


def describe(folder: Path) -> PipelineFacts:
    """What a checkpoint's folder says of its voices, languages and kind."""
    return _facts(Folder.read(folder), "talker", PIPELINE)


def _facts(folder: Folder, talker: str, pipeline: Pipeline) -> PipelineFacts:
    fields = [name for name in FIELDS if folder.instructed or name != "instructions"]
    tasks = None
    if folder.kind == "clone":
        fields += _CLONING
    else:
        (task,) = pipeline.tasks
        tasks = (replace(task, entries={"text": task.entries["text"]}),)
    most = folder.generation.get("max_new_tokens")
    return PipelineFacts(
        voices=tuple(folder.voices),
        languages=folder.languages,
        sample_rate=folder.sample_rate,
        speech_fields=tuple(fields),
        task_types=(folder.kind,),
        tasks=tasks,
        options={talker: {"max_tokens": int(most)}} if most else {},
    )


PIPELINE = Pipeline(
    name="qwen3-tts",
    stages=(TALKER, CODEC),
    edges=(Edge("talker", "codec.codes", "codes", mode="chunk"),),
    tasks=(Task("speech", entries={"text": "talker", "audio": "talker.reference"}, outputs={"audio": "codec"}),),
    architectures=("Qwen3TTSForConditionalGeneration",),
    checkpoints=CHECKPOINTS,
    describe=f"{_FAMILY}.pipeline:describe",
    sample_rate=SAMPLE_RATE,
    speech_fields=(*FIELDS, *_CLONING),
    task_types=("custom_voice", "voice_design", "clone"),
    doc="Qwen3-TTS (12 Hz): named voices, voices designed by a description, or cloned; a talker and a codec.",
)

_ENGINE = with_engine_options(TALKER)

TTS = Stage(
    name="tts",
    engine="omni_actors.worker.engines.chained:ChainedEngine",
    adapter=f"{_FAMILY}.fused:LINKS",
    ports=TALKER.ports,
    sections=("speech",),
    emits="audio",
    defaults=_ENGINE.defaults | CODEC.defaults,
    options_doc=_ENGINE.options_doc | CODEC.options_doc,
    options_type=_ENGINE.options_type | CODEC.options_type,
    options_least=_ENGINE.options_least | CODEC.options_least,
    doc="Talker and codec in one worker: text to sound.",
)


def describe_fused(folder: Path) -> PipelineFacts:
    """The same of the pipeline in one stage."""
    return _facts(Folder.read(folder), "tts", FUSED)


FUSED = replace(
    PIPELINE,
    name="qwen3-tts-fused",
    stages=(TTS,),
    edges=(),
    tasks=(Task("speech", entries={"text": "tts", "audio": "tts.reference"}, outputs={"audio": "tts"}),),
    architectures=(),  # chosen by its name
    checkpoints=(),
    describe=f"{_FAMILY}.pipeline:describe_fused",
    doc="Qwen3-TTS (12 Hz) in one worker: fewer processes and hops, but talker and codec take turns.",
)
