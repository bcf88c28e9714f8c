"""silero-vad → ``silero_vad.onnx`` (8 and 16 kHz) and ``silero_vad_16k.safetensors``."""

from __future__ import annotations

from pathlib import Path

from omni_actors.models.weights.convert.unpack import licence_file, unpack

KEPT = {
    "silero_vad/data/silero_vad.onnx": "silero_vad.onnx",
    "silero_vad/data/silero_vad_16k.safetensors": "silero_vad_16k.safetensors",
}


def convert(wheel: Path, folder: Path) -> None:
    unpack(wheel, folder, lambda member: KEPT.get(member) or licence_file(member), KEPT.values())
