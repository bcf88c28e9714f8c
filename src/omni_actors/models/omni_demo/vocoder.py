"""The vocoder stage: a sentence's spectra → sound, 24 kHz mono."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from omni_actors.connectors.payload import Payload
from omni_actors.models.omni_demo import voice
from omni_actors.models.omni_demo.acoustic import ACOUSTIC, BINS, SPECTRA
from omni_actors.models.omni_demo.pipeline import SAMPLE_RATE
from omni_actors.models.omni_demo.tempo import Samples, change_tempo
from omni_actors.protocol.errors import OmniError
from omni_actors.protocol.frames import Hello
from omni_actors.protocol.request import Usage
from omni_actors.worker.checks import check_input
from omni_actors.worker.engine import Work
from omni_actors.worker.engines.oneshot.adapter import GenerationAdapter
from omni_actors.worker.engines.oneshot.outputs import Result, audio_piece

SILENCE = 1e-3
"""Full scale is 1. What is never louder than this (-60 dB) at an end of the sound is silence."""

TEMPO_TOLERANCE = 0.02
"""A tempo nearer to 1 than this is left alone."""


@dataclass(slots=True)
class Sounding:
    """The state of one request: whether any sound has been made."""

    work: Work
    begun: bool = False


@dataclass(frozen=True, slots=True)
class Spectra:
    """An item: one payload of the acoustic stage."""

    request: Sounding
    payload: Payload


class Vocoder(GenerationAdapter[Sounding, Spectra]):
    """hibari's signal processing. The noise in a sentence is drawn from the request's seed and the sentence's place, so
    that the noise does not depend on other sentences or requests."""

    def __init__(self, hello: Hello) -> None:
        super().__init__(hello)
        self._first = max(1, round(hello.options.get("first_piece_s", 0.1) * SAMPLE_RATE))
        self._piece = max(1, round(hello.options.get("piece_s", 0.5) * SAMPLE_RATE))

    def load(self, progress: Callable[[str, float | None], None]) -> dict[str, Any]:
        assert self.hello.model is not None
        progress("loading the vocoder", None)
        self._dsp = voice.signal_processing(self.hello.model)
        spectra = {name: np.zeros((BINS, 8), np.float32) for name in SPECTRA}
        self._synthesize(Payload("acoustic", {"seed": 0, "index": 0}, {**spectra, "f0": np.zeros(8, np.float32)}))
        return {"sample_rate": SAMPLE_RATE, "channels": 1}

    def open(self, work: Work) -> tuple[Sounding, Sequence[Spectra]]:
        return Sounding(work), ()

    def feed(self, state: Sounding, port: str, payload: Payload | None, end: bool) -> Sequence[Spectra]:
        if payload is None:
            return ()
        check_input(payload, ACOUSTIC)
        return (Spectra(state, payload),)

    def batch_key(self, item: Spectra) -> Hashable:
        return id(item)

    def run(self, items: Sequence[Spectra]) -> Sequence[Result | OmniError]:
        results: list[Result | OmniError] = []
        for item in items:
            samples = self._synthesize(item.payload)
            pieces = [audio_piece(item.request.work, part, SAMPLE_RATE) for part in self._cut(samples, item.request)]
            item.request.begun = True
            results.append(Result(pieces, Usage(audio_output_s=len(samples) / SAMPLE_RATE)))
        return results

    def _synthesize(self, payload: Payload) -> Samples:
        tensors, meta = payload.tensors, payload.meta
        # Seeds are signed 64-bit numbers on the wire, the generator takes naturals.
        noise = np.random.default_rng([meta["seed"] % 2**64, meta["index"]])
        samples: Samples = self._dsp.synth(*(tensors[name] for name in SPECTRA), tensors["f0"], noise)
        samples = _trimmed(samples, *meta.get("silence", (None, None)))
        tempo = meta.get("tempo", 1.0)
        return samples if abs(tempo - 1.0) < TEMPO_TOLERANCE else change_tempo(samples, tempo, SAMPLE_RATE)

    def _cut(self, samples: Samples, request: Sounding) -> Iterator[Samples]:
        start = 0
        size = self._piece if request.begun else self._first
        while start < len(samples):
            yield samples[start : start + size]
            start, size = start + size, self._piece


def _trimmed(samples: Samples, begin_s: float | None, end_s: float | None) -> Samples:
    """``samples`` with no more silence than so many seconds at either end; ``None`` leaves an end as it is."""
    loud = np.flatnonzero(np.abs(samples) > SILENCE)
    if not len(loud):
        return samples
    start = 0 if begin_s is None else max(0, int(loud[0]) - round(begin_s * SAMPLE_RATE))
    end = len(samples) if end_s is None else int(loud[-1]) + 1 + round(end_s * SAMPLE_RATE)
    return samples[start:end]
