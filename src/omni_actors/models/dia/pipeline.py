"""Dia: a dialogue's text, and speech before it → frames of DAC codes → 44.1 kHz sound."""

from omni_actors.models.common.speech_pipeline import speech_pipeline
from omni_actors.protocol.options import Option

VOICES = ("S1", "S2")
"""The speakers that a text may name, as ``[S1] …``. One that names none is spoken by the request's voice."""

PIPELINE = speech_pipeline(
    "dia",
    "omni_actors.models.dia",
    architectures=("DiaForConditionalGeneration",),
    checkpoints=("nari-labs/Dia-1.6B-0626",),
    sample_rate=44_100,
    clones=True,
    voices=VOICES,
    languages=("en",),
    speech_fields=("ref_text",),
    talker={
        "guidance_scale": Option(
            None,
            "Scale of classifier-free guidance; 1 is off. By default the model's own.",
            type=float,
            least=1,
        ),
    },
    windows=True,
    doc="Nari Labs' dialogue model. A text names its speakers, [S1] and [S2]; a clip and its text set how they sound.",
)
