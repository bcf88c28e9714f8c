"""Runs the family's stages inside the test's own process."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import torch
from tests.models.qwen3_tts.samples import folder_of

from omni_actors.connectors.payload import Payload, TensorSpecs, blank_payload, pcm_payload
from omni_actors.protocol.errors import ErrorInfo, OmniError
from omni_actors.protocol.frames import PROTOCOL_VERSION, Hello, Ledger, Prefix
from omni_actors.protocol.params import Speech
from omni_actors.protocol.request import MediaChunk, StepProgress, TextDelta, Usage
from omni_actors.worker.engine import Engine, Work
from omni_actors.worker.engines.autoregressive import AutoregressiveEngine
from omni_actors.worker.engines.chained import ChainedEngine
from omni_actors.worker.engines.oneshot import GenerationEngine

FAMILY = "omni_actors.models.qwen3_tts"
GREEDY = {"temperature": 0.0, "repetition_penalty": 1.0}


@dataclass
class Out:
    """An outbox that keeps everything. Samples of the client's audio are float32 in [-1, 1]."""

    payloads: dict[int, list[Payload]] = field(default_factory=lambda: defaultdict(list))
    audio: dict[int, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    usage: dict[int, Usage] = field(default_factory=dict)
    errors: dict[int, ErrorInfo] = field(default_factory=dict)
    told: dict[int, list[Ledger]] = field(default_factory=lambda: defaultdict(list))

    def ready(self, key: int) -> bool:
        return True

    def text(self, delta: TextDelta) -> None:
        raise AssertionError("nothing is written here")

    def ledger(self, key: int, index: int, tokens: list[int], data: bytes = b"") -> None:
        self.told[key].append(Ledger(key, index, tokens, data))

    def prefix(self, key: int, steps: int) -> Prefix:
        """What another attempt of the request is told after so many steps."""
        told = self.told[key][:steps]
        return Prefix((tuple(token for it in told for token in it.tokens),), b"".join(it.data for it in told))

    def media(self, chunk: MediaChunk) -> None:
        assert chunk.meta["sample_rate"] == 24000
        self.audio[chunk.key].append(chunk.data)

    def progress(self, progress: StepProgress) -> None:
        raise AssertionError("no picture is made")

    def allocate(self, key: int, kind: str, meta: dict[str, Any], specs: TensorSpecs) -> Payload:
        return blank_payload(kind, meta, specs)

    def emit(self, key: int, payload: Payload) -> None:
        tensors = {name: np.array(tensor) for name, tensor in payload.tensors.items()}
        self.payloads[key].append(Payload(payload.kind, payload.meta, tensors))

    def consumed(self, key: int, port: str) -> None:
        pass

    def finish(self, key: int, usage: Usage) -> None:
        self.usage[key] = usage

    def fail(self, key: int, error: ErrorInfo) -> None:
        self.errors[key] = error

    def reply(self, query: int, value: Any, error: ErrorInfo | None = None) -> None:
        raise AssertionError("nobody asked")

    def codes(self, key: int) -> torch.Tensor:
        """int64 [frames, groups], without a clip's."""
        rows = [p.tensors["codes"][p.meta.get("context", 0) :] for p in self.payloads[key]]
        return torch.from_numpy(np.concatenate(rows))

    def sound(self, key: int) -> np.ndarray[Any, Any]:
        """float32 samples that went on to the next stage."""
        return np.concatenate([p.tensors["samples"] for p in self.payloads[key]])


def hello(kind: str, stage: str, adapter: str, **options: Any) -> Hello:
    return Hello(
        version=PROTOCOL_VERSION,
        stage=stage,
        replica=0,
        incarnation=1,
        engine="",
        adapter=adapter,
        model=str(folder_of(kind)),
        dtype="float32",
        threads=1,
        options=options,
    )


def talker_of(kind: str, **options: Any) -> AutoregressiveEngine:
    options = {"kv_blocks": 512} | options
    engine = AutoregressiveEngine(hello(kind, "talker", f"{FAMILY}.talker:Qwen3TTSTalker", **options))
    engine.load(lambda text, fraction: None)
    return engine


def voice_of(**options: Any) -> GenerationEngine:
    engine = GenerationEngine(hello("qwen3-tts-base", "voice", f"{FAMILY}.voice:Qwen3TTSVoice", **options))
    engine.load(lambda text, fraction: None)
    return engine


def codec_of(kind: str = "qwen3-tts", **options: Any) -> GenerationEngine:
    engine = GenerationEngine(hello(kind, "codec", f"{FAMILY}.codec:Qwen3TTSCodec", **options))
    engine.load(lambda text, fraction: None)
    return engine


def fused_of(kind: str, **options: Any) -> ChainedEngine:
    engine = ChainedEngine(hello(kind, "tts", f"{FAMILY}.fused:LINKS", **({"kv_blocks": 512} | options)))
    engine.load(lambda text, fraction: None)
    return engine


def speech(text: str, **fields: Any) -> Speech:
    """Greedy, without a penalty, unless ``fields`` say otherwise."""
    return Speech(text=text, **(GREEDY | {"max_tokens": 16} | fields))


@dataclass(frozen=True)
class Ask:
    speech: Speech
    clip: np.ndarray[Any, Any] | None = None
    """At 24 kHz."""


def hear(engine: GenerationEngine, ask: Ask, key: int = 0) -> Payload:
    """What the voice stage says of a request's clip. Raises :class:`OmniError` for one that it refuses."""
    assert ask.clip is not None
    out = Out()
    engine.admit(Work(key, f"request-{key}", {"speech": ask.speech}, frozenset({"reference"}), routed=True))
    engine.feed(key, "reference", pcm_payload(ask.clip, 24000, index=0), True)
    while engine.runnable:
        engine.step(out)
    if key in out.errors:
        raise OmniError(out.errors[key])
    (heard,) = out.payloads[key]
    return heard


def submit(
    engine: Engine, key: int, ask: Ask, *, visible: bool = False, prefix: Prefix | None = None, delivered: int = 0
) -> None:
    """To a talker, with what the voice stage heard of the clip; or to what has both."""
    params: Mapping[str, Any] = {"speech": ask.speech}
    port = None if ask.clip is None else "reference" if isinstance(engine, ChainedEngine) else "voice"
    ports = frozenset() if port is None else frozenset({port})
    heard = hear(shared_voice(), ask) if port == "voice" else None
    there = {"visible": visible, "routed": not visible}
    engine.admit(Work(key, f"request-{key}", params, ports, **there, prefix=prefix, delivered=delivered))
    if heard is not None:
        assert engine.feed(key, "voice", heard, True)
    elif ask.clip is not None:
        engine.feed(key, "reference", pcm_payload(ask.clip, 24000, index=0), True)


@cache
def shared_voice() -> GenerationEngine:
    return voice_of()


def run(engine: Engine, asks: list[Ask], concurrency: int = 1, *, visible: bool = False) -> Out:
    """All requests, by their place in the list; at most ``concurrency`` at a time."""
    out = Out()
    waiting = list(reversed(list(enumerate(asks))))
    for _ in range(20_000):
        while waiting and engine.counters()["requests"] < concurrency:
            submit(engine, *waiting.pop(), visible=visible)
        if not engine.runnable:
            return out
        assert engine.step(out), "runnable, but nothing ran"
    raise AssertionError("not done")


def decode(engine: GenerationEngine, codes: torch.Tensor, context: int = 0, key: int = 0) -> np.ndarray[Any, Any]:
    """Frames through the codec stage, one payload a frame, as a talker sends them."""
    out = Out()
    engine.admit(Work(key, "request", {}, frozenset({"codes"}), routed=True))
    if context:
        engine.feed(key, "codes", Payload("codes", {"context": context}, {"codes": codes[:context].numpy()}), False)
    for frame in codes[context:]:
        engine.feed(key, "codes", Payload("codes", {}, {"codes": frame[None].numpy()}), False)
        while engine.runnable and engine.step(out):
            pass
    engine.feed(key, "codes", None, True)
    while engine.runnable:
        engine.step(out)
    assert key in out.usage, out.errors
    return out.sound(key)
