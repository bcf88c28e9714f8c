"""The demo's stages as the worker's loop drives them, without the loop."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from omni_actors.connectors.payload import Payload, TensorSpecs, blank_payload, pcm_payload
from omni_actors.models.omni_demo.pipeline import PIPELINE
from omni_actors.protocol.errors import ErrorInfo, OmniError
from omni_actors.protocol.frames import PROTOCOL_VERSION, Hello
from omni_actors.protocol.options import filled
from omni_actors.protocol.params import Speech, Transcription
from omni_actors.protocol.request import MediaChunk, TextDelta, Usage
from omni_actors.worker.engine import Work
from omni_actors.worker.engines.oneshot import GenerationEngine


@dataclass
class Kept:
    """An outbox without limits that keeps what it gets, in order."""

    texts: list[TextDelta] = field(default_factory=list)
    media_chunks: list[MediaChunk] = field(default_factory=list)
    payloads: list[tuple[int, Payload]] = field(default_factory=list)
    done: dict[int, Usage] = field(default_factory=dict)
    failed: dict[int, ErrorInfo] = field(default_factory=dict)

    def ready(self, key: int) -> bool:
        return True

    def text(self, delta: TextDelta) -> None:
        self.texts.append(delta)

    def ledger(self, key: int, index: int, tokens: list[int], data: bytes = b"") -> None:
        pass

    def media(self, chunk: MediaChunk) -> None:
        self.media_chunks.append(chunk)

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

    def pcm(self, key: int) -> bytes:
        return b"".join(chunk.data for chunk in self.media_chunks if chunk.key == key)


class Stage:
    """One loaded stage of the demo. Requests are admitted by :meth:`admit` and run together by :meth:`run`."""

    def __init__(self, name: str, weights: Path, **options: Any) -> None:
        stage = next(stage for stage in PIPELINE.stages if stage.name == name)
        hello = Hello(
            version=PROTOCOL_VERSION,
            stage=name,
            replica=0,
            incarnation=1,
            engine=stage.engine,
            adapter=stage.adapter,
            model=str(weights / stage.model),
            options=filled(stage.options, options),
        )
        self.engine = GenerationEngine(hello)
        self.info = self.engine.load(lambda text, fraction: None)
        self._key = 0

    def admit(
        self,
        section: msgspec.Struct | None = None,
        port: str | None = None,
        payloads: Iterable[Payload] = (),
        routed: bool = False,
    ) -> int:
        """A request whose input is all there. Raises the error of a request that is refused."""
        self._key += 1
        ports = frozenset() if port is None else frozenset([port])
        params = {} if section is None else {type(section).__name__.lower(): section}
        self.engine.admit(Work(self._key, f"r{self._key}", params, ports, visible=True, routed=routed))
        if port is not None:
            for payload in payloads:
                self.engine.feed(self._key, port, payload, False)
            self.engine.feed(self._key, port, None, True)
        return self._key

    def run(self) -> Kept:
        out = Kept()
        while self.engine.runnable:
            self.engine.step(out)
        return out


@dataclass
class Voice:
    """The two speech stages, one after the other."""

    acoustic: Stage
    vocoder: Stage

    def spectra(self, **speech: Any) -> list[Payload]:
        """Raises :class:`OmniError` for what cannot be said."""
        key = self.acoustic.admit(Speech(**speech), routed=True)
        out = self.acoustic.run()
        if key in out.failed:
            raise OmniError(out.failed[key])
        return [payload for _, payload in out.payloads]

    def say(self, text: str, **speech: Any) -> bytes:
        """Speech as s16le at 24 kHz."""
        key = self.vocoder.admit(None, "frames", self.spectra(text=text, **speech))
        return self.vocoder.run().pcm(key)


def hear(
    recogniser: Stage, samples: np.ndarray[Any, Any], rate: int, **transcription: Any
) -> tuple[str, list[TextDelta]]:
    """The text that one clip gives, and its deltas."""
    asked = Transcription(**transcription)
    recogniser.admit(asked, "audio", [pcm_payload(samples.astype(np.float32), rate)])
    out = recogniser.run()
    assert not out.failed, out.failed
    return "".join(delta.text for delta in out.texts), out.texts


def samples_of(pcm: bytes) -> np.ndarray[Any, np.dtype[np.float32]]:
    """s16le as float32 in [-1, 1]."""
    return np.frombuffer(pcm, "<i2").astype(np.float32) / 32768.0
