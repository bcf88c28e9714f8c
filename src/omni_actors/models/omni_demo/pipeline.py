"""audio → ASR → LLM → acoustic net → vocoder → audio; text joins at the LLM, speech synthesis at the acoustic net.

Beside it, text → digits model → pictures, where the digits model has been trained.
"""

from dataclasses import replace
from pathlib import Path

from omni_actors.media.stage import PICTURES
from omni_actors.models.common.chat_options import CHAT_OPTIONS
from omni_actors.models.digits import pipeline as digits
from omni_actors.models.weights.cache import is_there
from omni_actors.models.weights.catalogue import DIGITS
from omni_actors.pipelines.declaration import Edge, Pipeline, PipelineFacts, Port, Stage, Task
from omni_actors.pipelines.weights.intact import PULL_COMMAND
from omni_actors.protocol.options import Option

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
    options={
        "vad": Option(
            "../vad",
            "Folder of the voice activity model, relative to the stage's folder; without it only loudness decides.",
        ),
        "speech_threshold": Option(
            0.3, "Probability of voice below which sound counts as silence and is not transcribed.", least=0
        ),
        "padding_s": Option(
            5.0,
            "Seconds of silence that are added to a short clip whose words alone are wanted; Whisper was "
            "trained with 30, which is twice the work.",
            least=0,
        ),
        "max_seconds": Option(1800.0, "Longest clip, in seconds; longer ones are refused.", least=1),
        "max_new_tokens": Option(224, "Most tokens for one window of 30 s.", least=1),
    },
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
    options={**CHAT_OPTIONS, "max_tokens": Option(512)},  # so small a model may talk without end
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
    options={
        "max_characters": Option(
            16_384, "Longest text of one speech request, in characters; longer ones are refused.", least=1
        )
    },
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
    options={
        "first_piece_s": Option(0.1, "Length of an answer's first piece of audio, in seconds.", least=0.01),
        "piece_s": Option(0.5, "Longest piece of audio after the first one, in seconds.", least=0.01),
    },
    doc="hibari's vocoder: spectra to sound.",
)

IMAGE = replace(digits.STAGE, model=DIGITS.folder)

NO_PICTURES = f"The demo makes no pictures: the digits model is not trained yet. Run: {PULL_COMMAND} {DIGITS.name}"


def describe(folder: Path) -> PipelineFacts:
    """Return the facts of a folder: the stages of pictures are left out as long as the digits model is not there."""
    if is_there(DIGITS, folder):
        return PipelineFacts()
    return PipelineFacts(lacks=(IMAGE.name, PICTURES.name), notes=(NO_PICTURES,))


PIPELINE = Pipeline(
    name="omni-demo",
    stages=(ASR, LLM, ACOUSTIC, VOCODER, IMAGE, PICTURES),
    edges=(
        Edge("asr", "llm.transcripts", "text"),
        Edge("llm", "acoustic.sentences", "text", mode="chunk", bridge=f"{_FAMILY}.bridges:Sentences"),
        # A sentence is megabytes of spectra, and the vocoder is the fastest stage: a short queue is enough.
        Edge("acoustic", "vocoder.frames", "acoustic", mode="chunk", capacity=4),
        *digits.PIPELINE.edges,
    ),
    tasks=(
        Task("chat", entries={"text": "llm", "audio": "asr.audio"}, outputs={"text": "llm", "audio": "vocoder"}),
        Task("completion", entries={"text": "llm"}, outputs={"text": "llm"}),
        Task("speech", entries={"text": "acoustic"}, outputs={"audio": "vocoder"}),
        Task("transcription", entries={"audio": "asr.audio"}, outputs={"text": "asr"}),
        *digits.PIPELINE.tasks,
    ),
    voices=(VOICE,),
    sample_rate=SAMPLE_RATE,
    languages=("en",),
    speech_fields=("speed", "language"),
    weights="omni_actors.models.weights.cache:demo_folder",
    describe=f"{_FAMILY}.pipeline:describe",
    doc="Text and speech in, text, speech and pictures of digits out, in English, on a CPU.",
)
