"""Drives an autoregressive engine inside the test's own process."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from omni_actors.connectors.payload import Payload, TensorSpecs, blank_payload
from omni_actors.models.causal_lm.adapter import CausalLM
from omni_actors.protocol.errors import ErrorInfo
from omni_actors.protocol.frames import PROTOCOL_VERSION, Hello
from omni_actors.protocol.params import Prompt, Sampling
from omni_actors.protocol.request import MediaChunk, StepProgress, TextDelta, TokenLogprob, Usage
from omni_actors.worker.engine import Work
from omni_actors.worker.engines.autoregressive import AutoregressiveEngine

MAX_STEPS = 20_000


@dataclass
class Answer:
    """What one choice of a request became."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    logprobs: list[TokenLogprob] = field(default_factory=list)
    deltas: list[str] = field(default_factory=list)


class Collector:
    """An Outbox that keeps everything. Requests in ``blocked`` have no credit."""

    def __init__(self) -> None:
        self.deltas: list[TextDelta] = []
        self.answers: dict[int, dict[int, Answer]] = defaultdict(lambda: defaultdict(Answer))
        self.usage: dict[int, Usage] = {}
        self.errors: dict[int, ErrorInfo] = {}
        self.emitted: dict[int, list[str]] = defaultdict(list)
        self.blocked: set[int] = set()

    def ready(self, key: int) -> bool:
        return key not in self.blocked

    def text(self, delta: TextDelta) -> None:
        self.deltas.append(delta)
        answer = self.answers[delta.key][delta.index]
        assert answer.finish_reason is None, "a delta after the last one"
        answer.text += delta.text
        answer.deltas.append(delta.text)
        answer.token_ids += delta.token_ids
        answer.finish_reason = delta.finish_reason
        answer.logprobs += delta.logprobs or []

    def ledger(self, key: int, index: int, tokens: list[int], data: bytes = b"") -> None:
        pass

    def media(self, chunk: MediaChunk) -> None:
        raise AssertionError("a language model makes no media")

    def progress(self, progress: StepProgress) -> None:
        raise AssertionError("no picture is made")

    def allocate(self, key: int, kind: str, meta: dict[str, Any], specs: TensorSpecs) -> Payload:
        return blank_payload(kind, meta, specs)

    def emit(self, key: int, payload: Payload) -> None:
        self.emitted[key].append(payload.meta["text"])

    def consumed(self, key: int, port: str) -> None:
        raise AssertionError("this engine queues no input")

    def finish(self, key: int, usage: Usage) -> None:
        assert key not in self.usage
        assert key not in self.errors
        self.usage[key] = usage

    def fail(self, key: int, error: ErrorInfo) -> None:
        assert key not in self.usage
        assert key not in self.errors
        self.errors[key] = error

    def reply(self, query: int, value: Any, error: ErrorInfo | None = None) -> None:
        raise AssertionError("nothing was asked")


def hello(model: str, dtype: str = "float32", threads: int = 1, **options: Any) -> Hello:
    return Hello(
        version=PROTOCOL_VERSION,
        stage="llm",
        replica=0,
        incarnation=1,
        engine="omni_actors.worker.engines.autoregressive:AutoregressiveEngine",
        adapter="omni_actors.models.causal_lm.adapter:CausalLM",
        model=model,
        dtype=dtype,
        threads=threads,
        options=options,
    )


def load_adapter(model: str, dtype: str = "float32", **options: Any) -> CausalLM:
    adapter = CausalLM(hello(model, dtype, **options))
    adapter.load(lambda text, fraction: None)
    return adapter


def engine_of(adapter: CausalLM, **options: Any) -> AutoregressiveEngine:
    """An engine of its own around a model that is loaded already."""
    engine = AutoregressiveEngine(hello("", **options))
    engine.attach(adapter)
    return engine


def work(key: int, prompt: Prompt | list[int] | str, *, ports: tuple[str, ...] = (), **sampling: Any) -> Work:
    """A request. Greedy unless ``sampling`` says otherwise."""
    if isinstance(prompt, str):
        prompt = Prompt(text=prompt)
    elif isinstance(prompt, list):
        prompt = Prompt(token_ids=prompt)
    routed = sampling.pop("routed", False)
    params = {"prompt": prompt, "sampling": Sampling(**({"temperature": 0.0} | sampling))}
    return Work(key, f"request-{key}", params, frozenset(ports), visible=True, routed=routed)


def run(engine: AutoregressiveEngine, works: list[Work], concurrency: int | None = None) -> Collector:
    """Run all to the end, at most ``concurrency`` in the engine at a time."""
    out = Collector()
    waiting = list(reversed(works))
    for _ in range(MAX_STEPS):
        while waiting and (concurrency is None or engine.counters()["requests"] < concurrency):
            engine.admit(waiting.pop())
        if not engine.runnable:
            return out
        assert engine.step(out), "runnable, but nothing ran"
    raise AssertionError(f"not done after {MAX_STEPS} steps")


def assert_idle(engine: AutoregressiveEngine) -> None:
    counters = engine.counters()
    gauges = {name: value for name, value in counters.items() if not name.endswith("_total")}
    assert gauges == dict.fromkeys(gauges, 0)
