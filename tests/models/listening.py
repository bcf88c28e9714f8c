"""Runs the two stages of a model that hears in the test's own process."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import msgspec
import numpy as np
from tests.worker.engines.ar_pair import Pair, half

from omni_actors.connectors.payload import Payload, TensorSpecs, blank_payload
from omni_actors.protocol.errors import ErrorInfo
from omni_actors.protocol.frames import PROTOCOL_VERSION, Hello, Prefix
from omni_actors.protocol.params import Prompt, Sampling, Transcription
from omni_actors.protocol.request import TextDelta, Usage
from omni_actors.worker.engine import Work
from omni_actors.worker.engines.autoregressive import AutoregressiveEngine

Samples = np.ndarray[Any, np.dtype[np.float32]]


def noise(seconds: float, seed: int) -> Samples:
    """A clip at 16 kHz that is unlike every other."""
    return (np.random.default_rng(seed).standard_normal(int(16_000 * seconds)) * 0.1).astype(np.float32)


def hello(folder: Path, stage: str, adapter: str, **options: Any) -> Hello:
    return Hello(
        version=PROTOCOL_VERSION,
        stage=stage,
        replica=0,
        incarnation=1,
        engine="",
        adapter=adapter,
        model=str(folder),
        dtype="float32",
        threads=1,
        options=options,
    )


@dataclass
class Said:
    """An Outbox that keeps what the decoder says, by request."""

    deltas: dict[int, list[TextDelta]] = field(default_factory=lambda: defaultdict(list))
    tokens: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    texts: dict[int, str] = field(default_factory=lambda: defaultdict(str))
    metas: dict[int, dict[str, Any]] = field(default_factory=lambda: defaultdict(dict))
    reasons: dict[int, str | None] = field(default_factory=dict)
    usage: dict[int, Usage] = field(default_factory=dict)
    errors: dict[int, ErrorInfo] = field(default_factory=dict)

    def ready(self, key: int) -> bool:
        return True

    def text(self, delta: TextDelta) -> None:
        self.deltas[delta.key].append(delta)
        self.tokens[delta.key] += delta.token_ids
        self.texts[delta.key] += delta.text
        self.metas[delta.key] |= delta.meta or {}
        self.reasons[delta.key] = delta.finish_reason

    def allocate(self, key: int, kind: str, meta: dict[str, Any], specs: TensorSpecs) -> Payload:
        return blank_payload(kind, meta, specs)

    def finish(self, key: int, usage: Usage) -> None:
        self.usage[key] = usage

    def fail(self, key: int, error: ErrorInfo) -> None:
        self.errors[key] = error


@dataclass(frozen=True)
class Asked:
    """A request: clips, and a section for them."""

    clips: Sequence[Samples]
    section: Prompt | Transcription
    max_tokens: int = 24


class Hearing:
    """Tower and decoder of one family's checkpoint. ``wire`` stands for the edge between them."""

    def __init__(
        self, family: str, folder: Path, wire: Callable[[Payload], Payload] = lambda payload: payload, **options: Any
    ) -> None:
        self.tower = resolve_name(f"{family}.encoder:Encoder")(hello(folder, "encoder", f"{family}.encoder:Encoder"))
        self.tower.load(lambda text, fraction: None)
        options = {"kv_memory_mib": 64, "max_tokens": 24, **options}
        told = hello(folder, "listener", f"{family}.listener:Decoder", **options)
        self.decoder = resolve_name(told.adapter)(told)
        self.decoder.load(lambda text, fraction: None)
        self.engine = AutoregressiveEngine(told)
        self.engine.attach(self.decoder)
        self.wire = wire

    def features(self, clips: Sequence[Samples]) -> list[Payload]:
        made = []
        for index, samples in enumerate(clips):
            work = Work(index, "", {})
            payload = Payload("pcm", {"index": index, "sample_rate": 16_000}, {"samples": samples})
            (result,) = self.tower.run(self.tower.feed(work, "audio", payload, True))
            made += [piece.payload for piece in result.pieces if piece.payload is not None]
        return made

    def work(self, key: int, asked: Asked) -> Work:
        transcribed = isinstance(asked.section, Transcription)
        params: dict[str, Any] = {"transcription" if transcribed else "prompt": asked.section}
        if not transcribed:
            if asked.clips:  # as the chat route sends it, for models that need clips written down first
                params["transcription"] = Transcription()
            params["sampling"] = Sampling(temperature=0.0, max_tokens=asked.max_tokens)
        ports = frozenset(("features",)) if asked.clips else frozenset[str]()
        return Work(key, f"request-{key}", params, ports, visible=True)

    def run(self, requests: Sequence[Asked], prefix: Prefix | None = None) -> Said:
        """All at the same time, to the end; behind what earlier attempts have said."""
        out = Said()
        for key, asked in enumerate(requests):
            self.engine.admit(replace(self.work(key, asked), prefix=prefix))
            payloads = self.features(asked.clips)
            for payload in payloads:
                self.engine.feed(key, "features", self.wire(payload), payload is payloads[-1])
        while self.engine.runnable:
            assert self.engine.step(out)  # type: ignore[arg-type]
        return out

    def run_in_halves(self, requests: Sequence[Asked], other: Hearing) -> list[list[int]]:
        """Prompts are computed by this one's decoder, answers are written by the other's: the answers' tokens."""
        options = {"kv_memory_mib": 64, "max_tokens": 24}
        pair = Pair(half(self.decoder, "prefill", **options), half(other.decoder, "decode", **options))
        for key, asked in enumerate(requests):
            pair.admit(self.work(key, asked))
            payloads = self.features(asked.clips)
            for payload in payloads:
                pair.feed(key, "features", payload, payload is payloads[-1])
        while pair.open:
            assert pair.turn()
        pair.assert_idle()
        assert not pair.out.errors
        return [pair.out.answers[key][0].token_ids for key in range(len(requests))]


def check_bounded(hearing: Hearing, clips: Sequence[Samples], asked: Transcription, other: Hearing) -> None:
    """Requests with limits of their own, together and with prompt and answer on two engines, each get the first tokens
    of the unbounded answer, a usage of as many, and the reason ``length``."""
    whole = hearing.run([Asked([samples], asked) for samples in clips])
    limits = [1 + 5 * key for key in range(len(clips))]
    expected = [whole.tokens[key][:limit] for key, limit in enumerate(limits)]
    assert [len(tokens) for tokens in expected] == [min(limit, 24) for limit in limits]
    assert any(len(whole.tokens[key]) > len(tokens) for key, tokens in enumerate(expected))
    bounded = [
        Asked([samples], msgspec.structs.replace(asked, max_tokens=limit))
        for samples, limit in zip(clips, limits, strict=True)
        if limit <= 24
    ]
    said = hearing.run(bounded)
    assert not said.errors
    for key in range(len(bounded)):
        assert said.tokens[key] == expected[key]
        assert said.usage[key].completion_tokens == limits[key]
        assert said.reasons[key] == "length"
        assert whole.texts[key].startswith(said.texts[key].rstrip("\ufffd"))
    assert other.run_in_halves(bounded, hearing) == expected[: len(bounded)]


def check_every_cut(run: Callable[[Prefix | None], Said]) -> list[TextDelta]:
    """A request that is interrupted behind any delta goes on with the next one. ``run`` runs it, as request 0, behind
    what it is given. Returns the undisturbed one's deltas."""
    whole = run(None)
    assert not whole.errors
    for cut in range(1, len(whole.deltas[0]) + 1):
        before = whole.deltas[0][:cut]
        rest = run(Prefix((tuple(token for delta in before for token in delta.token_ids),)))
        assert not rest.errors
        # The first delta of each attempt tells again what the prompt has used.
        assert _bare(rest.deltas[0]) == _bare(whole.deltas[0][cut:]), f"cut behind delta {cut}"
        assert rest.usage[0].completion_tokens == whole.usage[0].completion_tokens
    return whole.deltas[0]


def _bare(deltas: Sequence[TextDelta]) -> list[TextDelta]:
    return [msgspec.structs.replace(delta, usage=None) for delta in deltas]
