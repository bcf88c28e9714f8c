"""Higgs Audio v2: a scene, speech before it, and text → frames of codes → 24 kHz sound."""

from omni_actors.models.common.speech_pipeline import speech_pipeline
from omni_actors.protocol.options import Option

PIPELINE = speech_pipeline(
    "higgs-audio",
    "omni_actors.models.higgs_audio",
    architectures=("HiggsAudioV2ForConditionalGeneration",),
    checkpoints=("bosonai/higgs-audio-v2-generation-3B-base", "eustlb/higgs-audio-v2-generation-3B-base"),
    sample_rate=24_000,
    clones=True,
    speech_fields=("instructions", "ref_text"),
    talker={
        "system": Option(
            "Generate audio following instruction.", "System message of every conversation with the model."
        ),
        "scene": Option("Audio is recorded from a quiet room.", "Scene of a request whose instructions describe none."),
    },
    windows=True,
    doc="Boson AI's speech language model. Instructions describe the scene; a clip and its text set the voice.",
)
