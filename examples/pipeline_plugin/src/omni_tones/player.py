"""The second stage: it turns codes into sound, while more codes come."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from omni_actors.author import (
    GenerationAdapter,
    OmniError,
    Payload,
    Result,
    TensorSpec,
    Usage,
    Work,
    audio_piece,
    check_input,
)
from omni_tones.keys import COLUMNS, ROWS
from omni_tones.pipeline import SAMPLE_RATE

Codes = np.ndarray[Any, np.dtype[np.int64]]
Samples = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True, slots=True)
class Sounding:
    """The state of one request: how its keys sound."""

    work: Work
    tone: int
    gap: int
    level: float


@dataclass(frozen=True, slots=True)
class Keys:
    """An item: the codes of one payload, int64 [n, 2]."""

    sounding: Sounding
    codes: Codes


class Player(GenerationAdapter[Sounding, Keys]):
    """The adapter of the second stage. Each payload of codes is an item.

    The sound of a key depends on the key alone. So the sound is the same however the codes are cut into payloads, and
    whichever requests share the batch.
    """

    def load(self, progress: Callable[[str, float | None], None]) -> dict[str, Any]:
        return {"sample_rate": SAMPLE_RATE, "channels": 1}

    def open(self, work: Work) -> tuple[Sounding, Sequence[Keys]]:
        """Read the request's parameters: a checked value for each parameter that the pipeline declares."""
        said = work.params["parameters"]
        tone, gap = (said[name] * SAMPLE_RATE // 1000 for name in ("tone_ms", "gap_ms"))
        return Sounding(work, tone, gap, float(said["level"])), ()

    def feed(self, state: Sounding, port: str, payload: Payload | None, end: bool) -> Sequence[Keys]:
        """Take input, in order. Check here what a batch could fail on, so that the failure is the producer's."""
        if payload is None:
            return ()
        check_input(payload, {"codes": TensorSpec("int64", (None, 2), least=0, below=4)})
        return (Keys(state, payload.tensors["codes"]),)

    def batch_key(self, item: Keys) -> Hashable:
        """Let items with the same number of samples run as one operation."""
        return len(item.codes), item.sounding.tone

    def run(self, items: Sequence[Keys]) -> Sequence[Result | OmniError]:
        codes = np.stack([item.codes for item in items])  # [batch, n, 2]
        time = np.arange(items[0].sounding.tone) / SAMPLE_RATE
        low, high = np.array(ROWS)[codes[..., :1]], np.array(COLUMNS)[codes[..., 1:]]
        waves = np.sin(2 * np.pi * low * time) + np.sin(2 * np.pi * high * time)  # [batch, n, samples]
        return [self._result(item, wave) for item, wave in zip(items, waves, strict=True)]

    def _result(self, item: Keys, waves: np.ndarray[Any, Any]) -> Result:
        state = item.sounding
        samples = np.zeros((len(waves), state.tone + state.gap), np.float32)
        samples[:, : state.tone] = waves * state.level
        spoken: Samples = samples.reshape(-1)
        return Result([audio_piece(state.work, spoken, SAMPLE_RATE)], Usage(audio_output_s=len(spoken) / SAMPLE_RATE))
