"""All stages of an omni pipeline in the test's own process: real engines and payloads, without sockets.

A request's subgraph is what the orchestrator would choose: the encoder where there are media, talker and codec where
sound is wanted. Payloads are copied from stage to stage, as a link does it.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import numpy as np
import torch

from omni_actors.connectors.payload import Payload, TensorSpecs, blank_payload
from omni_actors.pipelines.declaration import Pipeline, Stage
from omni_actors.protocol.errors import ErrorInfo, OmniError, stage_failed
from omni_actors.protocol.frames import PROTOCOL_VERSION, EdgeSpec, Hello, Ledger, Prefix
from omni_actors.protocol.options import filled
from omni_actors.protocol.params import Prompt, Sampling, Speech
from omni_actors.protocol.request import MediaChunk, StepProgress, TextDelta, Usage
from omni_actors.worker.checks import InputError
from omni_actors.worker.engine import Engine, Work
from omni_actors.worker.engines.autoregressive.decoder import StepInputs, StepOutput
from omni_actors.worker.engines.autoregressive.options import OPTIONS as AR_OPTIONS

ENGINES = {
    "autoregressive": "omni_actors.worker.engines.autoregressive:AutoregressiveEngine",
    "generation": "omni_actors.worker.engines.oneshot:GenerationEngine",
}

CPU = "omni_actors.platforms.cpu:CpuPlatform"

MAX_STEPS = 50_000

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Ask:
    """One request; without a prompt one of task "speech". ``media`` are payloads as the media process delivers them, in
    order. ``sampling`` are fields of the thinker's section beside those of :data:`GREEDY`. ``shown`` says that the
    client wants the text too. ``prefixes`` (by stage) and ``delivered`` (of the last one) are what an earlier attempt
    left."""

    prompt: Prompt | None
    media: Sequence[Payload] = ()
    max_tokens: int = 16
    speech: Speech | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    shown: bool = True
    prefixes: Mapping[str, Prefix] = field(default_factory=dict)
    delivered: int = 0


@dataclass
class Answer:
    """What each stage made of it. ``ledger`` has, by stage, the tokens of each step and what was reported beside them.
    ``logits`` by stage and position: of the token at that position, before sampling."""

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    payloads: dict[str, list[Payload]] = field(default_factory=lambda: defaultdict(list))
    ledger: dict[str, list[Ledger]] = field(default_factory=lambda: defaultdict(list))
    logits: dict[str, dict[int, torch.Tensor]] = field(default_factory=lambda: defaultdict(dict))
    usage: dict[str, Usage] = field(default_factory=dict)
    error: ErrorInfo | None = None

    def prefix(self, stage: str, steps: int | None = None) -> Prefix:
        """What a new attempt is told after so many steps of a stage."""
        entries = self.ledger[stage][:steps]
        tokens = tuple(token for entry in entries for token in entry.tokens)
        return Prefix((tokens,), b"".join(entry.data for entry in entries))

    def joined(self, stage: str, tensor: str) -> Array:
        """A tensor of all the stage's payloads, one after the other."""
        return np.concatenate([payload.tensors[tensor] for payload in self.payloads[stage]])


class Line:
    """The stages of ``pipeline``, loaded from ``folder``. ``options`` are by stage; ``platform`` is a dotted name."""

    def __init__(
        self,
        pipeline: Pipeline,
        folder: Path,
        options: Mapping[str, Mapping[str, Any]] | None = None,
        platform: str = CPU,
    ) -> None:
        self.pipeline = pipeline
        self.stages = {stage.name: stage for stage in pipeline.stages}
        self.targets: dict[str, list[tuple[str, str]]] = defaultdict(list)
        for edge in pipeline.edges:
            self.targets[edge.source].append((edge.stage, edge.port))
        self.engines = {
            name: _load(stage, self.targets[name], folder, (options or {}).get(name, {}), platform)
            for name, stage in self.stages.items()
        }
        self.answers: dict[int, Answer] = {}
        self._routes: dict[int, set[str]] = {}
        self._mail: deque[Callable[[], None]] = deque()
        self._busy: dict[int, set[str]] = {}
        self._done = 0
        for name, engine in self.engines.items():
            if self.stages[name].engine == "autoregressive":
                self._record(name, engine)

    def adapter(self, stage: str) -> Any:
        engine: Any = self.engines[stage]
        return engine._adapter

    def run(self, asks: Sequence[Ask], concurrency: int = 1) -> list[Answer]:
        """All of them, so many at a time, in order."""
        self.answers = {}
        waiting = deque(enumerate(asks, start=self._done))
        first = self._done
        for _ in range(MAX_STEPS):
            while waiting and len(self._busy) < concurrency:
                self._admit(*waiting.popleft())
            if not self._turn() and not waiting and not self._busy:
                self._done += len(asks)
                return [self.answers[first + i] for i in range(len(asks))]
        raise AssertionError(f"not done after {MAX_STEPS} turns: {self._busy}")

    @property
    def next_key(self) -> int:
        """Of the first request of the next run; the others' follow."""
        return self._done

    def idle(self) -> bool:
        """Whether every gauge of every engine is zero."""
        return not any(
            value
            for engine in self.engines.values()
            for name, value in engine.counters().items()
            if not name.endswith("_total")
        )

    # -- the pump

    def _admit(self, key: int, ask: Ask) -> None:
        self.answers[key] = Answer()
        route = {"thinker"}
        if ask.media:
            route.add("encoder")
        if ask.speech is not None:
            route |= self.stages.keys() - {"thinker", "encoder"}
        self._routes[key], self._busy[key] = route, set(route)
        sampling = Sampling(**{**GREEDY, "max_tokens": ask.max_tokens, **ask.sampling})
        sections: dict[str, Any] = {} if ask.prompt is None else {"prompt": ask.prompt, "sampling": sampling}
        if ask.speech is not None:
            sections["speech"] = ask.speech
        for name in self.stages:
            if name not in route:
                continue
            stage = self.stages[name]
            fed = {port for source in route for target, port in self.targets[source] if target == name}
            ports = frozenset({"media"} if name == "encoder" else fed)
            params = {section: sections[section] for section in stage.sections if section in sections}
            routed = any(target in route for target, _ in self.targets[name])
            work = Work(
                key,
                f"r{key}",
                params,
                ports,
                visible=name == "thinker" and ask.shown,
                routed=routed or name == self.last,
                prefix=ask.prefixes.get(name),
                delivered=ask.delivered if name == self.last else 0,
            )
            self._guard(key, name, lambda name=name, work=work: self.engines[name].admit(work))  # type: ignore[misc]
            if key not in self._busy:
                return
        for payload in ask.media:
            self._deliver(key, "encoder", "media", payload)
        if ask.media:
            self._deliver(key, "encoder", "media", None)

    @property
    def last(self) -> str:
        return self.pipeline.stages[-1].name

    def _turn(self) -> bool:
        moved = False
        while self._mail:
            self._mail.popleft()()
            moved = True
        for name, engine in self.engines.items():
            if engine.runnable:
                moved |= engine.step(self._outbox(name))
        return moved or bool(self._mail)

    def _outbox(self, stage: str) -> _Outbox:
        return _Outbox(self, stage)

    def _deliver(self, key: int, stage: str, port: str, payload: Payload | None) -> None:
        def feed() -> None:
            if stage in self._busy.get(key, ()):  # it may have said its last word already
                self._guard(key, stage, lambda: self.engines[stage].feed(key, port, payload, payload is None))

        self._mail.append(feed)

    def _guard(self, key: int, stage: str, call: Callable[[], Any]) -> None:
        try:
            call()
        except OmniError as error:
            self.fail(key, error.info)
        except InputError as error:  # as the loop does it
            (source,) = {source for source, targets in self.targets.items() for target, _ in targets if target == stage}
            self.fail(key, stage_failed(source, str(error)).info)

    def emit(self, key: int, stage: str, payload: Payload) -> None:
        copy = Payload(
            payload.kind, payload.meta, {n: t.copy() for n, t in payload.tensors.items()}, dict(payload.dtypes)
        )
        self.answers[key].payloads[stage].append(copy)
        for target, port in self.targets[stage]:
            if target in self._routes[key]:
                self._deliver(key, target, port, copy)

    def finish(self, key: int, stage: str, usage: Usage) -> None:
        self.answers[key].usage[stage] = usage
        self._busy[key].discard(stage)
        for target, port in self.targets[stage]:
            if target in self._routes[key]:
                self._deliver(key, target, port, None)
        if not self._busy[key]:
            del self._busy[key]

    def fail(self, key: int, error: ErrorInfo) -> None:
        if key in self._busy:
            self.answers[key].error = error
            for stage in self._busy.pop(key):
                self.engines[stage].abort(key)

    def _record(self, name: str, engine: Any) -> None:
        """Keep the logits of every row that the engine samples from."""
        decoder = engine._adapter.decoder
        forward = decoder.forward

        def recorded(inputs: StepInputs, attention: Any) -> StepOutput:
            output: StepOutput = forward(inputs, attention)
            for row, logits in zip(inputs.rows.tolist(), output.logits, strict=True):
                for span in inputs.spans:
                    if span.at <= row < span.at + span.count and span.key in self.answers:
                        self.answers[span.key].logits[name][span.start + row - span.at + 1] = logits.float().clone()
            return output

        decoder.forward = recorded


GREEDY: dict[str, Any] = {"temperature": 0.0, "repetition_penalty": 1.0}


@dataclass(frozen=True)
class _Outbox:
    line: Line
    stage: str

    def ready(self, key: int) -> bool:
        return True

    def text(self, delta: TextDelta) -> None:
        answer = self.line.answers[delta.key]
        answer.text += delta.text
        answer.tokens += delta.token_ids
        answer.finish_reason = delta.finish_reason
        answer.ledger[self.stage].append(Ledger(delta.key, delta.index, delta.token_ids))

    def ledger(self, key: int, index: int, tokens: list[int], data: bytes = b"") -> None:
        self.line.answers[key].ledger[self.stage].append(Ledger(key, index, tokens, data))

    def media(self, chunk: MediaChunk) -> None:
        raise AssertionError("the last stage's samples are taken as payloads")

    def progress(self, progress: StepProgress) -> None:
        raise AssertionError("no picture is made")

    def allocate(self, key: int, kind: str, meta: dict[str, Any], specs: TensorSpecs) -> Payload:
        return blank_payload(kind, meta, specs)

    def emit(self, key: int, payload: Payload) -> None:
        self.line.emit(key, self.stage, payload)

    def consumed(self, key: int, port: str) -> None:
        pass

    def finish(self, key: int, usage: Usage) -> None:
        self.line.finish(key, self.stage, usage)

    def fail(self, key: int, error: ErrorInfo) -> None:
        self.line.fail(key, error)

    def reply(self, query: int, value: Any, error: ErrorInfo | None = None) -> None:
        raise AssertionError("nobody asked")


def _load(
    stage: Stage, targets: Iterable[tuple[str, str]], folder: Path, options: Mapping[str, Any], platform: str
) -> Engine:
    base = AR_OPTIONS if stage.engine == "autoregressive" else {}
    outputs = tuple(
        EdgeSpec(index=number, source=stage.name, target=target, port=port, kind="", mode="chunk")
        for number, (target, port) in enumerate(targets)
    )
    engine: Engine = resolve_name(ENGINES[stage.engine])(
        Hello(
            version=PROTOCOL_VERSION,
            stage=stage.name,
            replica=0,
            incarnation=1,
            engine=ENGINES[stage.engine],
            adapter=stage.adapter,
            model=str(folder),
            options=filled({**base, **stage.options}, options),
            outputs=outputs,
            platform=platform,
        )
    )
    engine.load(lambda text, fraction: None)
    return engine
