"""Pocket TTS: text, and a clip of the voice → continuous latents → 24 kHz sound."""

from pathlib import Path

from omni_actors.models.common.speech_pipeline import speech_pipeline
from omni_actors.pipelines.declaration import PipelineFacts
from omni_actors.protocol.options import Option

VOICES = "voices"
"""Sub-folder of a checkpoint: ``NAME.safetensors`` holds the latents [frames, width] of one voice."""


def describe(folder: Path) -> PipelineFacts:
    """Return the checkpoint's own voices, if any."""
    names = tuple(sorted(file.stem for file in (folder / VOICES).glob("*.safetensors")))
    return PipelineFacts(voices=names or None)


PIPELINE = speech_pipeline(
    "pocket-tts",
    "omni_actors.models.pocket_tts",
    architectures=("PocketTTSForConditionalGeneration",),
    checkpoints=("eustlb/pocket-tts",),
    sample_rate=24_000,
    frames="latents",
    sampling=("temperature",),
    clones=True,
    talker={
        "flow_steps": Option(
            None, "Steps of the flow head for each frame. By default the model's own.", type=int, least=1
        ),
        "sentence_tokens": Option(
            50, "Most tokens of a text that is spoken in one go; a longer text is cut at sentences.", least=1
        ),
    },
    describe=f"{__name__}:describe",
    doc="Kyutai's small voice: one latent a frame. It speaks with its checkpoint's voices or after a clip.",
)
