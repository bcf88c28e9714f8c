"""VibeVoice: a text of one or several speakers, and a clip of a voice → latents → 24 kHz sound, in one stage.

The model's own sound is its input: each frame's samples go through an encoder into the next step. The codec is
therefore no stage of its own.
"""

from omni_actors.models.common.speech_pipeline import speech_pipeline
from omni_actors.protocol.options import Option

VOICES = ("0", "1", "2", "3")
"""Speakers' numbers. A text may name them, in lines that begin with ``Speaker 1:``."""

PIPELINE = speech_pipeline(
    "vibevoice",
    "omni_actors.models.vibevoice",
    architectures=("VibeVoiceForConditionalGeneration",),
    checkpoints=("microsoft/VibeVoice-1.5B", "vibevoice/VibeVoice-1.5B-hf"),
    sample_rate=24_000,
    sampling=(),
    clones=True,
    voices=VOICES,
    languages=("en", "zh"),
    codec=False,
    talker={
        "max_characters": Option(
            65_536, "Longest text of one request, in characters; longer ones are refused.", least=1
        ),
        "guidance_scale": Option(
            None,
            "Scale of classifier-free guidance; 1 is off. By default the model's own.",
            type=float,
            least=1,
        ),
        "diffusion_steps": Option(
            None, "Steps of the diffusion head for each frame. By default the model's own.", type=int, least=1
        ),
    },
    doc="Microsoft's long-form speech model: 7.5 frames a second, each by diffusion. A clip sets the voice.",
)
