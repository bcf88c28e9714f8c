"""A speech family's two stages as the worker's loop drives them, without the loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni_actors.connectors.payload import Payload, TensorSpecs, blank_payload, pcm_payload
from omni_actors.pipelines.declaration import Pipeline
from omni_actors.protocol.errors import ErrorInfo, OmniError
from omni_actors.protocol.frames import PROTOCOL_VERSION, Hello
from omni_actors.protocol.options import filled
from omni_actors.protocol.params import Speech
from omni_actors.protocol.request import MediaChunk, TextDelta, Usage
from omni_actors.worker.engine import Work
from omni_actors.worker.engines.oneshot import GenerationEngine

Array = np.ndarray[Any, Any]


@dataclass
class Kept:
    """An outbox without limits that keeps what it gets, in order."""

    payloads: list[tuple[int, Payload]] = field(default_factory=list)
    done: dict[int, Usage] = field(default_factory=dict)
    failed: dict[int, ErrorInfo] = field(default_factory=dict)

    def ready(self, key: int) -> bool:
        return True

    def text(self, delta: TextDelta) -> None:
        raise AssertionError("a speech stage has no text to show")

    def ledger(self, key: int, index: int, tokens: list[int], data: bytes = b"") -> None:
        pass

    def media(self, chunk: MediaChunk) -> None:
        raise AssertionError("nobody asked to see this stage's output")

    def allocate(self, key: int, kind: str, meta: dict[str, Any], specs: TensorSpecs) -> Payload:
        return blank_payload(kind, meta, specs)

    def emit(self, key: int, payload: Payload) -> None:
        self.payloads.append((key, payload))

    def consumed(self, key: int, port: str) -> None:
        pass

    def finish(self, key: int, usage: Usage) -> None:
        self.done[key] = usage

    def fail(self, key: int, error: ErrorInfo) -> None:
        self.failed[key] = error

    def reply(self, query: int, value: Any, error: ErrorInfo | None = None) -> None:
        raise AssertionError("nobody asked")


class Stage:
    """One loaded stage."""

    def __init__(self, pipeline: Pipeline, name: str, folder: Path, **options: Any) -> None:
        stage = next(stage for stage in pipeline.stages if stage.name == name)
        hello = Hello(
            version=PROTOCOL_VERSION,
            stage=name,
            replica=0,
            incarnation=1,
            engine=stage.engine,
            adapter=stage.adapter,
            model=str(folder / stage.model),
            options=filled(stage.options, options),
        )
        self.engine = GenerationEngine(hello)
        self.info = self.engine.load(lambda text, fraction: None)
        self.adapter: Any = self.engine._adapter

    def admit(self, key: int, params: dict[str, Any], port: str | None, payloads: Sequence[Payload]) -> None:
        """Take in a request whose input is all there."""
        ports = frozenset() if port is None else frozenset([port])
        self.engine.admit(Work(key, f"r{key}", params, ports, visible=False, routed=True))
        if port is not None:
            for payload in payloads:
                self.engine.feed(key, port, payload, False)
            self.engine.feed(key, port, None, True)

    def run(self) -> Kept:
        out = Kept()
        while self.engine.runnable:
            self.engine.step(out)
        return out


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
