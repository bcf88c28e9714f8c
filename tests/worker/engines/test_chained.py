"""Engines one after the other in one worker: what goes between them, who waits for whom, and how requests end."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest

from omni_actors.connectors.payload import Payload, TensorSpecs, blank_payload, text_payload
from omni_actors.platforms.cpu import CpuPlatform
from omni_actors.protocol.errors import ErrorInfo, OmniError, invalid_request
from omni_actors.protocol.frames import PROTOCOL_VERSION, Hello
from omni_actors.protocol.request import MediaChunk, StepProgress, TextDelta, Usage
from omni_actors.worker.engine import Engine, Outbox, Work
from omni_actors.worker.engines.chained import CAPACITY, ChainedEngine, ChainLink

HERE = __name__


class Counting(Engine):
    """Says the numbers below ``params["n"]``, one a step and request; fails at ``params["fail"]``."""

    def __init__(self, hello: Hello) -> None:
        super().__init__(hello)
        self.at: dict[int, int] = {}
        self.works: dict[int, Work] = {}

    def load(self, progress: Callable[[str, float | None], None]) -> dict[str, Any]:
        return {"first": self.hello.stage, "seen": dict(self.hello.options)}

    def admit(self, work: Work) -> None:
        self.works[work.key], self.at[work.key] = work, 0

    def feed(self, key: int, port: str, payload: Payload | None, end: bool) -> bool:
        raise AssertionError("it takes no input")

    def abort(self, key: int) -> None:
        self.at.pop(key, None)
        self.works.pop(key, None)

    @property
    def runnable(self) -> bool:
        return bool(self.at)

    def step(self, out: Outbox) -> bool:
        ran = False
        for key, at in list(self.at.items()):
            if not out.ready(key):
                continue
            ran = True
            params = self.works[key].params
            if at == params.get("fail"):
                self.abort(key)
                out.fail(key, ErrorInfo(message="the count fails"))
            elif at == params["n"]:
                self.abort(key)
                out.finish(key, Usage(completion_tokens=at))
            else:
                self.at[key] += 1
                out.emit(key, text_payload(str(at)))
        return ran

    def counters(self) -> dict[str, float]:
        return {"requests": len(self.at)}


class Repeating(Engine):
    """Queues what comes and says it again, one a step and request, while ``open``; refuses what ``refused`` says, and
    raises at what ``breaks`` says."""

    open = True

    def __init__(self, hello: Hello) -> None:
        super().__init__(hello)
        self.works: dict[int, Work] = {}
        self.queues: dict[int, deque[str]] = {}
        self.ended: set[int] = set()

    def load(self, progress: Callable[[str, float | None], None]) -> dict[str, Any]:
        return {"last": self.hello.stage}

    def admit(self, work: Work) -> None:
        if work.params.get("full"):
            raise invalid_request("no room here")
        assert work.ports == {"numbers"}
        self.works[work.key], self.queues[work.key] = work, deque()

    def feed(self, key: int, port: str, payload: Payload | None, end: bool) -> bool:
        assert port == "numbers"
        if end:
            self.ended.add(key)
        if payload is None:
            return True
        if payload.meta["text"] == self.works[key].params.get("refused"):
            raise invalid_request("not this number")
        if payload.meta["text"] == self.works[key].params.get("breaks"):
            raise ValueError("not this number")
        self.queues[key].append(payload.meta["text"])
        return False

    def abort(self, key: int) -> None:
        self.works.pop(key, None)
        self.queues.pop(key, None)
        self.ended.discard(key)

    @property
    def runnable(self) -> bool:
        return self.open and any(queue or key in self.ended for key, queue in self.queues.items())

    def step(self, out: Outbox) -> bool:
        for key, queue in list(self.queues.items()):
            if queue:
                out.consumed(key, "numbers")
                text = queue.popleft()
                assert self.works[key].visible
                out.text(TextDelta(key, 0, text, []))
            elif key in self.ended:
                self.abort(key)
                out.finish(key, Usage(prompt_tokens=1))
        return True

    def counters(self) -> dict[str, float]:
        return {"requests": len(self.queues), "queued": sum(map(len, self.queues.values()))}


class Relaying(Repeating):
    """Hands on what comes, in the same step."""

    def step(self, out: Outbox) -> bool:
        for key, queue in list(self.queues.items()):
            while queue:
                out.consumed(key, "numbers")
                out.emit(key, text_payload(queue.popleft() + "!"))
            if key in self.ended:
                self.abort(key)
                out.finish(key, Usage(audio_input_s=1.0))
        return True


LINKS = (ChainLink("count", f"{HERE}:Counting", "c"), ChainLink("repeat", f"{HERE}:Repeating", "r", "numbers"))


RELAY = ChainLink("relay", f"{HERE}:Relaying", "r", optional=True)
WITH_OPTIONAL = (RELAY, LINKS[1])
THREE = (RELAY, *LINKS)


@dataclass
class Out:
    taken: list[int] = field(default_factory=list)
    said: dict[int, list[str]] = field(default_factory=dict)
    usage: dict[int, Usage] = field(default_factory=dict)
    errors: dict[int, ErrorInfo] = field(default_factory=dict)

    def ready(self, key: int) -> bool:
        return True

    def text(self, delta: TextDelta) -> None:
        self.said.setdefault(delta.key, []).append(delta.text)

    def ledger(self, key: int, index: int, tokens: list[int], data: bytes = b"") -> None:
        pass

    def media(self, chunk: MediaChunk) -> None:
        raise AssertionError("nothing is heard")

    def progress(self, progress: StepProgress) -> None:
        raise AssertionError("no picture is made")

    def allocate(self, key: int, kind: str, meta: dict[str, Any], specs: TensorSpecs) -> Payload:
        return blank_payload(kind, meta, specs)

    def emit(self, key: int, payload: Payload) -> None:
        raise AssertionError("nothing leaves by an edge")

    def consumed(self, key: int, port: str) -> None:
        self.taken.append(key)

    def finish(self, key: int, usage: Usage) -> None:
        self.usage[key] = usage

    def fail(self, key: int, error: ErrorInfo) -> None:
        self.errors[key] = error

    def reply(self, query: int, value: Any, error: ErrorInfo | None = None) -> None:
        raise AssertionError("nobody asked")


def chained(links: str) -> ChainedEngine:
    hello = Hello(
        version=PROTOCOL_VERSION,
        stage="both",
        replica=0,
        incarnation=1,
        engine="",
        adapter=f"{HERE}:{links}",
        model=None,
        options={"loud": True},
    )
    return ChainedEngine(hello)


@pytest.fixture
def chain() -> ChainedEngine:
    engine = chained("LINKS")
    assert engine.load(lambda text, fraction: None) == {"first": "count", "seen": {"loud": True}, "last": "repeat"}
    return engine


def work(key: int, n: int, **params: Any) -> Work:
    return Work(key, f"r{key}", {"n": n, **params}, visible=True)


def drain(engine: ChainedEngine) -> Out:
    out = Out()
    for _ in range(1000):
        if not engine.runnable:
            return out
        assert engine.step(out)
    raise AssertionError("no end")


def assert_idle(engine: ChainedEngine) -> None:
    assert set(engine.counters().values()) == {0}


def test_what_one_emits_the_next_takes(chain: ChainedEngine) -> None:
    for key, n in ((1, 3), (2, 0), (3, 5)):
        chain.admit(work(key, n))
    assert chain.counters()["requests"] == 3
    out = drain(chain)
    assert out.said == {1: ["0", "1", "2"], 3: ["0", "1", "2", "3", "4"]}
    assert out.usage[3] == Usage(completion_tokens=5, prompt_tokens=1)
    assert set(out.usage) == {1, 2, 3}
    assert_idle(chain)


def test_one_step_runs_each_once(chain: ChainedEngine) -> None:
    chain.admit(work(1, 3))
    out = Out()
    chain.step(out)
    assert out.said == {1: ["0"]}


def test_the_first_stands_still_while_the_next_has_too_much(chain: ChainedEngine) -> None:
    chain.admit(work(1, CAPACITY + 10))
    last = chain._engines[1]
    last.open = False  # type: ignore[attr-defined]
    out = Out()
    steps = 0
    while chain.step(out):
        steps += 1
    assert steps == CAPACITY == chain.counters()["repeat_queued"]
    last.open = True  # type: ignore[attr-defined]
    assert len(drain(chain).said[1]) == CAPACITY + 10
    assert_idle(chain)


@pytest.mark.parametrize("params", [{"fail": 2}, {"refused": "2"}, {"breaks": "2"}])
def test_a_failure_in_either_ends_the_request_in_both_and_no_other(chain: ChainedEngine, params: Any) -> None:
    chain.admit(work(1, 5, **params))
    chain.admit(work(2, 5))
    out = drain(chain)
    assert set(out.errors) == {1}
    assert set(out.usage) == {2}
    assert len(out.said[2]) == 5
    assert_idle(chain)


def test_one_that_the_last_does_not_take_is_in_none(chain: ChainedEngine) -> None:
    with pytest.raises(OmniError, match="no room here"):
        chain.admit(work(1, 5, full=True))
    assert_idle(chain)
    assert not chain.runnable


def test_an_abort_reaches_all(chain: ChainedEngine) -> None:
    chain.admit(work(1, 5))
    chain.step(Out())
    chain.abort(1)
    chain.abort(1)
    assert drain(chain) == Out()
    assert_idle(chain)


def test_an_optional_one_is_for_requests_with_input() -> None:
    chain = chained("WITH_OPTIONAL")
    chain.admit(Work(1, "r1", {}, frozenset({"numbers"}), visible=True))
    assert not chain.feed(1, "numbers", text_payload("7"), False)
    assert chain.feed(1, "numbers", None, True)
    out = drain(chain)
    assert (out.said, out.taken) == ({1: ["7!"]}, [1])
    assert out.usage[1] == Usage(audio_input_s=1.0, prompt_tokens=1)
    assert_idle(chain)


def test_requests_without_input_leave_it_out() -> None:
    chain = chained("THREE")
    chain.admit(work(1, 2))
    assert chain.counters()["relay_requests"] == 0
    out = drain(chain)
    assert (out.said, out.taken) == ({1: ["0", "1"]}, [])
    assert_idle(chain)


class OwnEngines(CpuPlatform):
    engines: ClassVar[Mapping[str, str]] = {"counting": f"{HERE}:Counting"}


BY_KIND = (ChainLink("count", "counting", "c"),)


def test_a_kind_is_computed_by_the_platforms_own_engine() -> None:
    hello = Hello(
        version=PROTOCOL_VERSION,
        stage="chain",
        replica=0,
        incarnation=1,
        engine="",
        adapter=f"{HERE}:BY_KIND",
        platform=f"{HERE}:OwnEngines",
    )
    assert ChainedEngine(hello).load(lambda text, fraction: None)["first"] == "count"
