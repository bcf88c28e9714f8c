"""audio → ASR → LLM → acoustic net → vocoder → audio; text joins at the LLM, speech synthesis at the acoustic net."""

from omni_actors.models.common.chat_options import CHAT_OPTIONS, CHAT_OPTIONS_DOC, CHAT_OPTIONS_TYPE
from omni_actors.pipelines.declaration import Edge, Pipeline, Port, Stage, Task

VOICE = "heart"

SAMPLE_RATE = 24_000

_FAMILY = "omni_actors.models.omni_demo"

ASR = Stage(
    name="asr",
    engine="generation",
    adapter=f"{_FAMILY}.asr:Recogniser",
    ports=(
        Port("audio", "pcm", mode="chunk", doc="The clips, in order: each payload is one clip, mono, at any rate."),
    ),
    sections=("transcription",),
    emits="text",
    model="asr",
    dtypes=("float32",),
    weight=2.0,
    defaults={"vad": "../vad", "speech_threshold": 0.3, "padding_s": 5.0, "max_seconds": 1800.0, "max_new_tokens": 224},
    options_doc={
        "vad": "Folder of the voice activity model, relative to this stage's; without it only loudness is looked at.",
        "speech_threshold": "Probability of voice below which sound counts as silence and is not transcribed.",
        "padding_s": "Silence that is heard behind a short clip when its words alone are wanted, in seconds; "
        "30 is how Whisper was trained, and twice the work.",
        "max_seconds": "Longest clip, in seconds; longer ones are refused.",
        "max_new_tokens": "Most tokens for one window of 30 s.",
    },
    options_least={"speech_threshold": 0, "padding_s": 0, "max_seconds": 1, "max_new_tokens": 1},
    input_limits={"audio": "max_seconds"},
    doc="Whisper: writes down what is said.",
)

LLM = Stage(
    name="llm",
    engine="autoregressive",
    adapter="omni_actors.models.causal_lm.adapter:CausalLM",
    ports=(
        Port(
            "transcripts",
            "text",
            required=False,
            mode="full",
            doc="What was said in the prompt's audio parts, one payload per clip.",
        ),
    ),
    sections=("prompt", "sampling"),
    emits="text",
    separable=True,
    network="omni_actors.models.causal_lm.pipeline:network",
    vllm="omni_actors.models.causal_lm.prompted:PromptedLM",
    model="llm",
    weight=4.0,
    defaults={**CHAT_OPTIONS, "max_tokens": 512},  # so small a model may talk without end
    options_doc=CHAT_OPTIONS_DOC,
    options_type=CHAT_OPTIONS_TYPE,
    doc="SmolLM2: answers in text.",
)

ACOUSTIC = Stage(
    name="acoustic",
    engine="generation",
    adapter=f"{_FAMILY}.acoustic:Acoustic",
    ports=(Port("sentences", "text", required=False, mode="chunk", doc="Text to say, a sentence at a time."),),
    sections=("speech",),
    model="tts",
    dtypes=("float32",),
    defaults={"max_characters": 16_384},
    options_doc={"max_characters": "Longest text of one speech request, in characters; longer ones are refused."},
    options_least={"max_characters": 1},
    input_limits={"text": "max_characters"},
    doc="hibari's acoustic net: text normalisation, phonemes, spectra.",
)

VOCODER = Stage(
    name="vocoder",
    engine="generation",
    adapter=f"{_FAMILY}.vocoder:Vocoder",
    ports=(Port("frames", "acoustic", mode="chunk", doc="Spectra, a sentence at a time."),),
    emits="audio",
    model="tts",
    dtypes=("float32",),
    defaults={"first_piece_s": 0.1, "piece_s": 0.5},
    options_doc={
        "first_piece_s": "Length of an answer's first piece of audio, in seconds.",
        "piece_s": "Longest of the pieces after it, in seconds.",
    },
    options_least={"first_piece_s": 0.01, "piece_s": 0.01},
    doc="hibari's vocoder: spectra to sound.",
)

PIPELINE = Pipeline(
    name="omni-demo",
    stages=(ASR, LLM, ACOUSTIC, VOCODER),
    edges=(
        Edge("asr", "llm.transcripts", "text"),
        Edge("llm", "acoustic.sentences", "text", mode="chunk", bridge=f"{_FAMILY}.bridges:Sentences"),
        # A sentence is megabytes of spectra, and the vocoder is the fastest stage: a short queue is enough.
        Edge("acoustic", "vocoder.frames", "acoustic", mode="chunk", capacity=4),
    ),
    tasks=(
        Task("chat", entries={"text": "llm", "audio": "asr.audio"}, outputs={"text": "llm", "audio": "vocoder"}),
        Task("completion", entries={"text": "llm"}, outputs={"text": "llm"}),
        Task("speech", entries={"text": "acoustic"}, outputs={"audio": "vocoder"}),
        Task("transcription", entries={"audio": "asr.audio"}, outputs={"text": "asr"}),
    ),
    voices=(VOICE,),
    sample_rate=SAMPLE_RATE,
    languages=("en",),
    speech_fields=("speed", "language"),
    weights="omni_actors.models.weights.cache:demo_folder",
    doc="Text and speech in, text and speech out, in English, on a CPU.",
)
