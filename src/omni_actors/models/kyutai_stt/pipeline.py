"""Kyutai speech-to-text: clips → Mimi's codes → text."""

from omni_actors.pipelines.declaration import Edge, Pipeline, Port, Stage, Task

_FAMILY = "omni_actors.models.kyutai_stt"

ENCODER = Stage(
    name="encoder",
    engine="generation",
    adapter=f"{_FAMILY}.encoder:Encoder",
    ports=(Port("audio", "pcm", mode="chunk", doc="The clip, mono."),),
    dtypes=("float32",),
    defaults={"max_seconds": 1800.0, "window_frames": 250},
    options_doc={
        "max_seconds": "Longest clip, in seconds; longer ones are refused.",
        "window_frames": "Frames (of 80 ms) that the codec encodes at a time; what came before is remembered.",
    },
    options_least={"max_seconds": 1, "window_frames": 1},
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
    defaults={"max_model_len": 24_000},
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
