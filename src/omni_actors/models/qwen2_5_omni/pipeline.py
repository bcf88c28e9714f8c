"""media → encoder → thinker → talker → token2wav → sound. The thinker alone answers in text."""

from __future__ import annotations

import json
import pickletools
import zipfile
from pathlib import Path

from omni_actors.models.common.network import read_config, text_network
from omni_actors.models.common.omni_pipeline import omni_pipeline
from omni_actors.pipelines.declaration import PipelineFacts, Port, Stage
from omni_actors.pipelines.strategy import Network
from omni_actors.protocol.options import Option

SAMPLE_RATE = 24_000

_FAMILY = "omni_actors.models.qwen2_5_omni"

TOKEN2WAV_OPTIONS: dict[str, Option] = {
    "first_chunk_frames": Option(
        6,
        "Codes of an answer's first piece of sound, rounded up to what the blocks give; a request may ask for its "
        "own number.",
        least=1,
    ),
    "min_chunk_frames": Option(
        12,
        "Fewest codes of the pieces behind it.",
        least=1,
    ),
    "chunk_frames": Option(
        96,
        "Most codes of a piece, and its size where the ramp is off.",
        least=1,
    ),
    "ramp": Option(
        True,
        "Whether pieces grow while the listener has enough to play, and shrink otherwise; if false, each "
        "piece has chunk_frames.",
    ),
    "window_blocks": Option(
        4,
        "Most blocks (of 12 codes in the published checkpoints) in a group that is computed at once. "
        "Groups grow up to this number, and each group also computes look_ahead_blocks.",
        least=1,
    ),
    "pace": Option(
        2.0,
        "How many times as fast as they are played codes come at least: groups grow no faster than keeps a "
        "listener from running dry. Where they come slower, he waits in all no longer than the largest group "
        "plays. With window_blocks 1 each block leaves when it can, for up to 1.5 times the work.",
        least=1,
    ),
    "left_context_blocks": Option(
        None,
        "Earlier blocks that are computed again with each group. null keeps their state instead (27 MiB "
        "per request in the published checkpoints), as if all earlier blocks were computed again.",
        type=int,
        least=0,
    ),
    "look_ahead_blocks": Option(
        1,
        "Later blocks that are computed with each group; the first sound waits for them. null takes as "
        "many as the sound of the whole needs.",
        type=int,
        least=0,
    ),
    "vocoder_context_frames": Option(
        None,
        "Frames of spectrogram on either side of a piece that its sound is made with; null takes as many "
        "as the convolutions reach.",
        type=int,
        least=0,
    ),
    "steps": Option(
        10,
        "Time points of the flow's solver.",
        least=2,
    ),
    "guidance": Option(
        0.5,
        "Weight of classifier-free guidance.",
    ),
    "sway": Option(
        -1.0,
        "How much the time points are shifted towards the beginning (negative) or the end.",
    ),
}

TOKEN2WAV = Stage(
    name="token2wav",
    engine="generation",
    adapter=f"{_FAMILY}.token2wav:Token2Wav",
    ports=(Port("codes", "codes", mode="chunk", doc="Codec tokens, 50 a second."),),
    sections=("speech",),
    emits="audio",
    dtypes=("float32",),
    weight=2.0,
    options=TOKEN2WAV_OPTIONS,
    doc="Codec tokens to spectrograms by a diffusion transformer, and those to sound by BigVGAN.",
)


def describe(folder: Path) -> PipelineFacts:
    """Read a checkpoint's folder: its voices, and whether the model speaks at all."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if not config.get("enable_audio_output", True):
        return PipelineFacts(lacks=("talker", "token2wav"))
    return PipelineFacts(voices=speaker_names(folder / "spk_dict.pt"))


def speaker_names(path: Path) -> tuple[str, ...] | None:
    """Return the names in a checkpoint's dictionary of speakers, lower case; ``None`` without the file.

    The serving process has no torch and unpickles nothing: the process reads the strings of the pickled dictionary. The
    names are the strings other than a speaker's field or the place of a tensor's numbers.
    """
    if not path.exists():
        return None
    with zipfile.ZipFile(path) as archive:
        pickled = next(name for name in archive.namelist() if name.endswith("data.pkl"))
        operations = list(pickletools.genops(archive.read(pickled)))
    strings = [str(value) for operation, value, _ in operations if operation.name.endswith("BINUNICODE")]
    known = {"bos_token", "cond", "ref_mel", "storage", "cpu"}
    names = [s.lower() for s in strings if s not in known and not s.isdigit() and not s.startswith("cuda")]
    return tuple(dict.fromkeys(names))


def network(folder: Path) -> Network:
    """The thinker's sizes."""
    return text_network(read_config(folder)["thinker_config"]["text_config"])


PIPELINE = omni_pipeline(
    "qwen2.5-omni",
    _FAMILY,
    TOKEN2WAV,
    classes="Qwen25Omni",
    max_frames=16_384,  # five and a half minutes
    sample_rate=SAMPLE_RATE,
    architectures=("Qwen2_5OmniModel", "Qwen2_5OmniForConditionalGeneration"),
    checkpoints=("Qwen/Qwen2.5-Omni-7B", "Qwen/Qwen2.5-Omni-3B"),
    files=("spk_dict.pt",),
    voices=("chelsie", "ethan"),
    doc="Qwen2.5-Omni: text, images, audio and video in, text and speech out.",
)
