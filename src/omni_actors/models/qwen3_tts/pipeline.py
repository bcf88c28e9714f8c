"""Text → talker → codec → sound, in a worker each, or in one (``qwen3-tts-fused``). Checkpoints that clone voices have
one more, for the clips."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from omni_actors.models.qwen3_tts.folder import Folder
from omni_actors.pipelines.declaration import Edge, Pipeline, PipelineFacts, Port, Stage, Task
from omni_actors.protocol.options import Option
from omni_actors.worker.engines.oneshot.options import CODEC_OPTIONS

_FAMILY = "omni_actors.models.qwen3_tts"

SAMPLE_RATE = 24_000

TALKER_OPTIONS: dict[str, Option] = {
    "max_tokens": Option(
        8192,
        "Most frames (12.5 a second) of an answer whose request names no limit; by default what the "
        "checkpoint's generation config says.",
        least=1,
    ),
    "non_streaming_mode": Option(
        None,
        "Whether the talker reads the whole text before its first frame, or a piece with each frame. null "
        "is as in the model's own code: the whole text, except for clones.",
        type=bool,
    ),
}
"""Options of the talker, beside those of its engine."""

VOICE_OPTIONS: dict[str, Option] = {
    "max_reference_s": Option(30.0, "Longest reference clip of a voice, in seconds.", least=1),
    "clip_cache_mib": Option(
        256.0, "Memory in MiB for clips and their encodings; a clip that comes again is not encoded again.", least=0
    ),
}

VOICE = Stage(
    name="voice",
    engine="generation",
    adapter=f"{_FAMILY}.voice:Qwen3TTSVoice",
    ports=(Port("reference", "pcm", mode="chunk", doc="The clip of a voice to clone, mono."),),
    sections=("speech",),
    options=VOICE_OPTIONS,
    input_limits={"audio": "max_reference_s"},
    doc="Hears the clip of a voice to clone: its timbre, and its codec frames.",
)

TALKER = Stage(
    name="talker",
    engine="autoregressive",
    adapter=f"{_FAMILY}.talker:Qwen3TTSTalker",
    ports=(Port("voice", "voice", required=False, doc="What was heard of a voice to clone."),),
    sections=("speech",),
    weight=4.0,
    options=TALKER_OPTIONS,
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
    options=CODEC_OPTIONS,
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
    """Read a checkpoint's voices, languages and kind from its folder."""
    read = Folder.read(folder)
    facts = _facts(read, "talker")
    return facts if read.kind == "clone" else replace(facts, lacks=("voice",))


def _facts(folder: Folder, talker: str) -> PipelineFacts:
    fields = [name for name in FIELDS if folder.instructed or name != "instructions"]
    if folder.kind == "clone":
        fields += _CLONING
    most = folder.generation.get("max_new_tokens")
    return PipelineFacts(
        voices=tuple(folder.voices),
        languages=folder.languages,
        sample_rate=folder.sample_rate,
        speech_fields=tuple(fields),
        task_types=(folder.kind,),
        options={talker: {"max_tokens": int(most)}} if most else {},
    )


PIPELINE = Pipeline(
    name="qwen3-tts",
    stages=(VOICE, TALKER, CODEC),
    edges=(Edge("voice", "talker.voice", "voice"), Edge("talker", "codec.codes", "codes", mode="chunk")),
    tasks=(Task("speech", entries={"text": "talker", "audio": "voice.reference"}, outputs={"audio": "codec"}),),
    architectures=("Qwen3TTSForConditionalGeneration",),
    checkpoints=CHECKPOINTS,
    describe=f"{_FAMILY}.pipeline:describe",
    sample_rate=SAMPLE_RATE,
    speech_fields=(*FIELDS, *_CLONING),
    task_types=("custom_voice", "voice_design", "clone"),
    doc="Qwen3-TTS (12 Hz): named voices, voices designed by a description, or cloned; a talker and a codec.",
)

TTS = Stage(
    name="tts",
    engine="omni_actors.worker.engines.chained:ChainedEngine",
    adapter=f"{_FAMILY}.fused:LINKS",
    ports=tuple(replace(port, required=False) for port in VOICE.ports),
    sections=("speech",),
    emits="audio",
    runs=(TALKER.engine, CODEC.engine),
    options={**TALKER_OPTIONS, **CODEC_OPTIONS, **VOICE_OPTIONS},
    doc="Talker and codec in one worker, and what hears clips: text to sound.",
)


def describe_fused(folder: Path) -> PipelineFacts:
    """The same of the pipeline in one stage."""
    read = Folder.read(folder)
    facts = _facts(read, "tts")
    (task,) = FUSED.tasks
    return facts if read.kind == "clone" else replace(facts, tasks=(replace(task, entries={"text": "tts"}),))


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
