"""Drives a codec adapter through the engine, and small codecs whose every sample is known."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from omni_actors.connectors.payload import Payload, TensorSpecs, blank_payload
from omni_actors.protocol.errors import ErrorInfo
from omni_actors.protocol.frames import PROTOCOL_VERSION, Hello
from omni_actors.protocol.request import MediaChunk, StepProgress, TextDelta, Usage
from omni_actors.worker.engine import Work
from omni_actors.worker.engines.oneshot import GenerationEngine
from omni_actors.worker.engines.oneshot.codec import CodecAdapter

PORT = "codes"

Samples = np.ndarray[Any, np.dtype[np.float32]]


@dataclass
class Sound:
    """An outbox that keeps each request's samples as a next stage gets them."""

    pieces: dict[int, list[Samples]] = field(default_factory=lambda: defaultdict(list))
    starts: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    """Where pieces say that they begin."""
    usage: dict[int, Usage] = field(default_factory=dict)
    errors: dict[int, ErrorInfo] = field(default_factory=dict)
    consumed_payloads: dict[int, int] = field(default_factory=lambda: defaultdict(int))

    def ready(self, key: int) -> bool:
        return True

    def text(self, delta: TextDelta) -> None:
        raise AssertionError("a codec says nothing")

    def ledger(self, key: int, index: int, tokens: list[int], data: bytes = b"") -> None:
        pass

    def media(self, chunk: MediaChunk) -> None:
        raise AssertionError("nobody listens")

    def progress(self, progress: StepProgress) -> None:
        raise AssertionError("no picture is made")

    def allocate(self, key: int, kind: str, meta: dict[str, Any], specs: TensorSpecs) -> Payload:
        return blank_payload(kind, meta, specs)

    def emit(self, key: int, payload: Payload) -> None:
        self.pieces[key].append(np.array(payload.tensors["samples"]))
        if "start" in payload.meta:
            self.starts[key].append(payload.meta["start"])

    def consumed(self, key: int, port: str) -> None:
        self.consumed_payloads[key] += 1

    def finish(self, key: int, usage: Usage) -> None:
        self.usage[key] = usage

    def fail(self, key: int, error: ErrorInfo) -> None:
        self.errors[key] = error

    def reply(self, query: int, value: Any, error: ErrorInfo | None = None) -> None:
        raise AssertionError("nobody asked")

    def of(self, key: int) -> Samples:
        return np.concatenate([np.empty(0, np.float32), *self.pieces[key]])


def codec_engine(
    adapter: type[CodecAdapter], options: Mapping[str, Any] | None = None, max_batch: int = 8, model: str | None = None
) -> GenerationEngine:
    name = f"{adapter.__module__}:{adapter.__qualname__}"
    engine = GenerationEngine(
        Hello(
            version=PROTOCOL_VERSION,
            stage="codec",
            replica=0,
            incarnation=0,
            engine="",
            adapter=name,
            model=model,
            options=dict(options or {}),
            limits={"max_batch": max_batch},
        )
    )
    engine.load(lambda text, fraction: None)
    return engine


def open_stream(
    engine: GenerationEngine, key: int, params: Mapping[str, Any] | None = None, delivered: int = 0
) -> None:
    ports = frozenset({PORT})
    engine.admit(Work(key, f"r{key}", params or {}, ports, visible=False, routed=True, delivered=delivered))


def payload(codes: np.ndarray[Any, Any], **meta: Any) -> Payload:
    return Payload("codes", meta, {"codes": codes})


def run_all(engine: GenerationEngine, out: Sound) -> None:
    while engine.runnable:
        assert engine.step(out)


def decode_in_pieces(
    engine: GenerationEngine,
    streams: Sequence[np.ndarray[Any, Any]],
    cuts: Callable[[int, int], int],
    steps: Callable[[int], bool] = lambda turn: True,
) -> Sound:
    """All streams at once: ``cuts(stream, turn)`` frames of each in turn, with an engine step where ``steps`` says."""
    out = Sound()
    fed = [0] * len(streams)
    for key in range(len(streams)):
        open_stream(engine, key)
    turn = 0
    while any(f is not None and f <= len(s) for f, s in zip(fed, streams, strict=True)):
        for key, codes in enumerate(streams):
            if fed[key] > len(codes):
                continue
            count = max(1, cuts(key, turn))
            piece = codes[fed[key] : fed[key] + count]
            fed[key] += count
            end = fed[key] >= len(codes)
            if end:
                fed[key] = len(codes) + 1
            engine.feed(key, PORT, payload(piece) if len(piece) else None, end)
        if steps(turn) and engine.runnable:
            engine.step(out)
        turn += 1
    run_all(engine, out)
    return out


class Convolutions(CodecAdapter):
    """A causal codec in the manner of Qwen3-Omni's: two convolutions that look back, and two transposed ones that look
    one step ahead and leave out what they cannot know."""

    sample_rate = 100
    samples_per_frame = 6
    groups = 2
    codebook_size = 16
    sufficient_context = 4

    def prepare(self, progress: Callable[[str, float | None], None]) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(0)

        def weights(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator) / 2

        self.table = weights(self.groups * self.codebook_size, 4)
        self.back, self.further = weights(4, 4, 3), weights(4, 4, 3)
        self.up = (weights(4, 3, 4), 2), (weights(3, 1, 6), 3)
        self.batches: list[int] = []
        return {}

    def decode(self, codes: torch.Tensor) -> torch.Tensor:
        self.batches.append(len(codes))
        offsets = torch.arange(self.groups) * self.codebook_size
        x = self.table[codes + offsets].mean(2).transpose(1, 2)
        for weight, dilation in ((self.back, 1), (self.further, 1)):
            x = torch.tanh(torch.nn.functional.conv1d(torch.nn.functional.pad(x, (2, 0)), weight, dilation=dilation))
        for weight, stride in self.up:
            x = torch.nn.functional.conv_transpose1d(x, weight, stride=stride)[..., stride:-stride]
        return torch.tanh(x[:, 0])


class Remembers(Convolutions):
    """The same sound by memory: of the codes themselves, of as many frames as a sample depends on."""

    past = 6

    def remember(self) -> torch.Tensor:
        return torch.zeros(self.past * self.groups)

    def decode_next(
        self, codes: torch.Tensor, begins: torch.Tensor, memories: torch.Tensor, fresh: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        assert {begin == 0 for begin in begins.tolist()} == {fresh}
        samples, then = [], []
        for row, begin, memory in zip(codes, begins.tolist(), memories, strict=True):
            known = min(begin, self.past)
            window = torch.cat((memory.view(self.past, self.groups)[self.past - known :].long(), row))
            settled = max(0, 6 * begin - 9)
            samples.append(self.decode(window[None])[0, settled - 6 * (begin - known) :])
            padded = torch.cat((torch.zeros(self.past, self.groups, dtype=torch.int64), window))
            then.append(padded[-self.past :].float().flatten())
        return torch.stack(samples), torch.stack(then)


class LooksAhead(Convolutions):
    """A codec whose convolutions look both ways: the last samples of a window change with what comes behind it."""

    sufficient_context = 3
    unsettled = 18
    paddable = False

    def decode(self, codes: torch.Tensor) -> torch.Tensor:
        self.batches.append(len(codes))
        offsets = torch.arange(self.groups) * self.codebook_size
        x = self.table[codes + offsets].mean(2).transpose(1, 2)
        for weight in (self.back, self.further):
            x = torch.tanh(torch.nn.functional.conv1d(x, weight, padding=1))
        x = x.repeat_interleave(self.samples_per_frame, dim=2)
        return torch.tanh(torch.nn.functional.conv1d(x, self.back, padding=1)[:, 0])


def check_every_delivery(
    engine: GenerationEngine,
    stream: np.ndarray[Any, Any],
    delivered: Iterable[int],
    *,
    context: int = 0,
    tolerance: float,
    slack: int,
) -> list[int]:
    """Whatever the client has of a stream, what another attempt makes goes on behind it, and begins at most ``slack``
    samples before; the first ``context`` frames are a clip's. The frames come at once, and the last four one by one.
    Returns where the attempts begin."""

    def attempt(key: int, delivered: int) -> Sound:
        out = Sound()
        open_stream(engine, key, delivered=delivered)
        split = max(context, len(stream) - 4)
        meta = {"context": context} if context else {}
        engine.feed(key, PORT, payload(stream[:split], **meta), False)
        for frame in range(split, len(stream)):
            run_all(engine, out)
            engine.feed(key, PORT, payload(stream[frame : frame + 1]), False)
        engine.feed(key, PORT, None, True)
        run_all(engine, out)
        assert not out.errors
        return out

    whole = attempt(0, 0)
    starts = []
    for number, count in enumerate(delivered, 1):
        rest = attempt(number, count)
        start = rest.starts[number][0] if count else 0
        assert max(0, count - slack) <= start <= count
        sound = whole.of(0)[start:]
        assert rest.of(number).shape == sound.shape
        np.testing.assert_allclose(rest.of(number), sound, rtol=0, atol=tolerance)
        if count:
            assert rest.starts[number] == [
                start + sum(map(len, rest.pieces[number][:i])) for i in range(len(rest.starts[number]))
            ]
        assert abs(rest.usage[number].audio_output_s - whole.usage[0].audio_output_s) < 1e-9
        assert not engine.counters()["requests"]
        starts.append(start)
    return starts
