"""Kyutai speech-to-text: clips → Mimi's codes → text."""

from omni_actors.pipelines.declaration import Edge, Pipeline, Port, Stage, Task
from omni_actors.protocol.options import Option

_FAMILY = "omni_actors.models.kyutai_stt"

ENCODER = Stage(
    name="encoder",
    engine="generation",
    adapter=f"{_FAMILY}.encoder:Encoder",
    ports=(Port("audio", "pcm", mode="chunk", doc="The clip, mono."),),
    dtypes=("float32",),
    options={
        "max_seconds": Option(1800.0, "Longest clip, in seconds; longer ones are refused.", least=1),
        "window_frames": Option(
            250, "Frames (of 80 ms) that the codec encodes at a time; the codec keeps its state in between.", least=1
        ),
    },
    input_limits={"audio": "max_seconds"},
    doc="Mimi: sound to codes.",
)

LISTENER = Stage(
    name="listener",
    engine="autoregressive",
    adapter=f"{_FAMILY}.listener:Decoder",
    ports=(Port("codes", "codes", mode="chunk", doc="The clip's codes, in order: int64 [frames, codebooks]."),),
    sections=("transcription",),
    emits="text",
    weight=4.0,
    options={"max_model_len": Option(24_000)},
    doc="Decoder: a frame of codes in, a token of text out.",
)

PIPELINE = Pipeline(
    name="kyutai-stt",
    stages=(ENCODER, LISTENER),
    edges=(Edge("encoder", "listener.codes", "codes", mode="chunk"),),
    tasks=(Task("transcription", entries={"audio": "encoder.audio"}, outputs={"text": "listener"}),),
    architectures=("KyutaiSpeechToTextForConditionalGeneration",),
    checkpoints=("kyutai/stt-2.6b-en-trfs", "kyutai/stt-1b-en_fr-trfs"),
    languages=("en", "fr"),
    doc="Transcribes English (and, the smaller checkpoint, French).",
)
