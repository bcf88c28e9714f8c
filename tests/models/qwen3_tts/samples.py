"""Folders and clips for this family's tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from omni_actors.models.tiny.cache import cached

KINDS = ("qwen3-tts", "qwen3-tts-design", "qwen3-tts-base")


def folder_of(kind: str) -> Path:
    """A tiny checkpoint of that kind, built once."""
    return cached(kind)


def voice_clip(seconds: float, rate: int = 24000, pitch: float = 200.0) -> np.ndarray[Any, Any]:
    """A gliding tone with overtones and a little noise: float32 [seconds * rate]."""
    times = np.arange(round(seconds * rate)) / rate
    phase = 2 * np.pi * pitch * (times + 0.05 * np.sin(3 * times))
    tone = sum(np.sin(phase * n) / n for n in range(1, 6))
    noise = np.random.default_rng(1).standard_normal(len(times))
    clip: np.ndarray[Any, Any] = (0.2 * tone + 0.02 * noise).astype(np.float32)
    return clip
