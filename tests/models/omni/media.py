"""Media of the tests, as the media process delivers them, and as transformers' processor takes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from omni_actors.connectors.payload import Payload

FPS = 2.0

RATE = 16_000


@dataclass(frozen=True, eq=False)
class Given:
    """One medium: ``modality``, and pixels, samples or frames. A video may have sound."""

    modality: str
    array: np.ndarray[Any, Any]
    sound: np.ndarray[Any, Any] | None = None

    def payload(self, index: int) -> Payload:
        if self.modality == "image":
            return Payload("image", {"index": index}, {"pixels": self.array})
        if self.modality == "audio":
            meta = {"index": index, "sample_rate": RATE, "seconds": len(self.array) / RATE, "length": len(self.array)}
            return Payload("pcm", meta, {"samples": self.array})
        meta = {"index": index, "fps": FPS, "seconds": len(self.array) / FPS}
        tensors = {"frames": self.array} | ({} if self.sound is None else {"samples": self.sound})
        return Payload("video", meta, tensors)

    @property
    def part(self) -> dict[str, Any]:
        return {"type": self.modality}


def image(height: int, width: int, seed: int = 0) -> Given:
    """A picture with shapes in it: noise alone looks alike to a vision tower."""
    random = np.random.default_rng(seed)
    coarse = random.integers(0, 256, (4, 4, 3)).repeat(-(-height // 4), 0).repeat(-(-width // 4), 1)
    noise = random.integers(-20, 20, (height, width, 3))
    return Given("image", np.clip(coarse[:height, :width] + noise, 0, 255).astype(np.uint8))


def audio(seconds: float, seed: int = 0) -> Given:
    random = np.random.default_rng(seed)
    t = np.arange(round(seconds * RATE)) / RATE
    waves = zip(random.uniform(100, 3000, 4), random.uniform(0, 6, 4), strict=True)
    tones = sum(np.sin(2 * np.pi * pitch * t + phase) for pitch, phase in waves)
    return Given(
        "audio", (0.1 * tones * (1 + np.sin(3 * t)) + 0.01 * random.standard_normal(len(t))).astype(np.float32)
    )


def video(frames: int, height: int, width: int, seed: int = 0, sound: float | None = None) -> Given:
    """Frames at two a second, with so many seconds of sound."""
    array = np.stack([image(height, width, 100 * seed + i).array for i in range(frames)])
    return Given("video", array, None if sound is None else audio(sound, seed + 7).array)


def for_processor(given: Sequence[Given]) -> dict[str, Any]:
    """The processor's arguments. Sound of videos and clips is listed as it comes in the prompt."""
    images = [it.array for it in given if it.modality == "image"]
    videos = [it for it in given if it.modality == "video"]
    arguments: dict[str, Any] = {}
    if images:
        arguments["images"] = images
    if videos:
        arguments["videos"] = [it.array for it in videos]
        arguments["fps"] = FPS
    clips: list[np.ndarray[Any, Any]] = []
    sources: list[int | None] = []
    for it in given:
        if it.modality == "audio":
            clips.append(it.array)
            sources.append(None)
        elif it.sound is not None:
            clips.append(it.sound)
            sources.append(videos.index(it))
    if clips:
        arguments["audio"] = clips
    if any(source is not None for source in sources):
        arguments |= {"load_audio_from_video": True, "audio_from_video_indices": sources}
    return arguments
