"""CSM: text, and speech of the same voice before it → frames of Mimi's codes → 24 kHz sound."""

from omni_actors.models.common.speech_pipeline import speech_pipeline

PIPELINE = speech_pipeline(
    "csm",
    "omni_actors.models.csm",
    architectures=("CsmForConditionalGeneration",),
    checkpoints=("sesame/csm-1b",),
    sample_rate=24_000,
    clones=True,
    voices=tuple(map(str, range(10))),
    languages=("en",),
    speech_fields=("ref_text",),
    doc="Sesame's conversational speech model. A voice is a speaker's number; a clip and its text set how it sounds.",
)
