"""A speech family's two stages as the worker's loop drives them, without the loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.models.stage_harness import Kept, LoadedStage

from omni_actors.connectors.payload import Payload, pcm_payload
from omni_actors.pipelines.declaration import Pipeline
from omni_actors.protocol.errors import OmniError
from omni_actors.protocol.params import Speech
from omni_actors.protocol.request import MediaChunk, StepProgress, TextDelta, Usage

Array = np.ndarray[Any, Any]


class PayloadsOnly(Kept):
    """The outbox of a stage whose output goes to another stage alone."""

    def text(self, delta: TextDelta) -> None:
        raise AssertionError("a speech stage has no text to show")

    def media(self, chunk: MediaChunk) -> None:
        raise AssertionError("nobody asked to see this stage's output")

    def progress(self, progress: StepProgress) -> None:
        raise AssertionError("no picture is made")


class Stage(LoadedStage):
    """One loaded stage of a speech family."""

    def __init__(self, pipeline: Pipeline, name: str, folder: Path, **options: Any) -> None:
        super().__init__(pipeline, name, folder, **options)
        self.adapter: Any = self.engine._adapter

    def admit(self, key: int, params: dict[str, Any], port: str | None, payloads: Sequence[Payload]) -> None:
        """Admit a request whose input is complete."""
        self.take(key, params, port, payloads, visible=False, routed=True)

    def run(self, out: Kept | None = None) -> Kept:
        return super().run(PayloadsOnly() if out is None else out)


@dataclass
class Spoken:
    """``frames`` [n, width] as the talker made them, ``samples`` [m] in [-1, 1]."""

    frames: Array
    samples: Array
    usage: Usage
    pieces: int


class SpeechHarness:
    """A talker and its codec. Options of the talker are keywords, those of the codec in ``codec``."""

    def __init__(self, pipeline: Pipeline, folder: Path, *, codec: dict[str, Any] | None = None, **talker: Any) -> None:
        self.talker = Stage(pipeline, "talker", folder, **talker)
        self.codec = Stage(pipeline, "codec", folder, **(codec or {}))
        self.sample_rate = pipeline.sample_rate

    def say(self, text: str, *references: tuple[Array, int], **speech: Any) -> Spoken:
        """Raises :class:`OmniError` for what the talker refuses or fails on."""
        return self.say_all([(Speech(text=text, reference=bool(references), **speech), references)])[0]

    def say_all(self, asked: Sequence[tuple[Speech, Sequence[tuple[Array, int]]]]) -> list[Spoken]:
        """What requests that run side by side give."""
        for key, (speech, references) in enumerate(asked, 1):
            clips = [pcm_payload(samples, rate) for samples, rate in references]
            self.talker.admit(key, {"speech": speech}, "reference" if clips else None, clips)
        out = self.talker.run()
        if out.failed:
            raise OmniError(out.failed[min(out.failed)])
        made = {key: [payload for of, payload in out.payloads if of == key] for key in out.done}
        for key, payloads in sorted(made.items()):
            self.codec.admit(key, {}, payloads[0].kind, payloads)
        heard = self.codec.run()
        assert not heard.failed, heard.failed
        spoken = []
        for key, payloads in sorted(made.items()):
            frames = np.concatenate([payload.tensors[payload.kind] for payload in payloads if payload.tensors])
            pieces = [payload.tensors["samples"] for of, payload in heard.payloads if of == key]
            spoken.append(Spoken(frames, np.concatenate(pieces), out.done[key], len(pieces)))
        return spoken


class WaveformHarness:
    """A talker whose frames are sound already."""

    def __init__(self, pipeline: Pipeline, folder: Path, **talker: Any) -> None:
        self.talker = Stage(pipeline, "talker", folder, **talker)

    def say(self, text: str, *references: tuple[Array, int], **speech: Any) -> Spoken:
        """Raises :class:`OmniError` for what the talker refuses or fails on."""
        clips = [pcm_payload(samples, rate) for samples, rate in references]
        asked = Speech(text=text, reference=bool(references), **speech)
        self.talker.admit(1, {"speech": asked}, "reference" if clips else None, clips)
        return self._heard()[0]

    def say_all(self, asked: Sequence[tuple[str, int]]) -> list[Spoken]:
        """What texts with seeds that run side by side give."""
        for key, (text, seed) in enumerate(asked, 1):
            self.talker.admit(key, {"speech": Speech(text=text, seed=seed)}, None, ())
        return self._heard()

    def _heard(self) -> list[Spoken]:
        out = self.talker.run()
        if out.failed:
            raise OmniError(out.failed[min(out.failed)])
        spoken = []
        for key, usage in sorted(out.done.items()):
            pieces = [payload.tensors["samples"] for of, payload in out.payloads if of == key]
            samples = np.concatenate(pieces)
            spoken.append(Spoken(samples[None], samples, usage, len(pieces)))
        return spoken


def clip(seconds: float, rate: int = 24_000) -> Array:
    """A reference: a tone that swells and fades, float32 [n]."""
    time = np.arange(int(seconds * rate)) / rate
    return (0.3 * np.sin(2 * np.pi * 220 * time) * np.sin(2 * np.pi * 3 * time)).astype(np.float32)


def check_seeds(harness: SpeechHarness, texts: Sequence[str]) -> None:
    """A seed repeats and another does not, whatever runs beside."""
    alone = [harness.say(texts[0], seed=seed) for seed in (1, 2)]
    assert alone[0].frames.shape != alone[1].frames.shape or not np.array_equal(alone[0].frames, alone[1].frames)
    beside = [(Speech(text=text, seed=seed), ()) for text, seed in ((texts[0], 1), (texts[1], 7), (texts[0], 2))]
    together = harness.say_all(beside)
    for one, other in ((together[0], alone[0]), (together[2], alone[1])):
        assert np.array_equal(one.frames, other.frames)
        assert np.abs(one.samples - other.samples).max() < 1e-5


def refusal(
    harness: SpeechHarness | WaveformHarness, text: str = "Hello", *references: tuple[Array, int], **speech: Any
) -> tuple[int, str | None]:
    """Status and ``param`` of what is refused."""
    with pytest.raises(OmniError) as refused:
        harness.say(text, *references, **speech)
    return refused.value.info.status, refused.value.info.param
