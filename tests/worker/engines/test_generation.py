"""The one-shot engine, driven step by step with small numpy models and an outbox that counts credits."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_actors.connectors.payload import Payload, TensorSpecs, blank_payload, pcm_payload, text_payload
from omni_actors.protocol.errors import ErrorInfo, OmniError, invalid_request
from omni_actors.protocol.frames import Hello
from omni_actors.protocol.request import MediaChunk, StepProgress, TextDelta, Usage
from omni_actors.worker.checks import OutputError, TensorSpec
from omni_actors.worker.engine import Work
from omni_actors.worker.engines.oneshot import GenerationEngine
from omni_actors.worker.engines.oneshot.adapter import GenerationAdapter
from omni_actors.worker.engines.oneshot.outputs import Piece, Result, add_usage, audio_piece, pcm16
from omni_actors.worker.isolation import RECOVERY_BATCHES
from omni_actors.worker.returned import usage_problem

POISON, REFUSED, NAN = 1e7, -1.0, float("nan")


@dataclass
class Recorder:
    """An outbox that keeps everything. ``credits`` holds what each key has left; a key without entry has no edges."""

    credits: dict[int, int] = field(default_factory=dict)
    events: list[tuple[int, str, Any]] = field(default_factory=list)
    ended: set[int] = field(default_factory=set)

    def ready(self, key: int) -> bool:
        return self.credits.get(key, 1) > 0

    def text(self, delta: TextDelta) -> None:
        self._add(delta.key, "text", delta.text)

    def ledger(self, key: int, index: int, tokens: list[int], data: bytes = b"") -> None:
        pass

    def media(self, chunk: MediaChunk) -> None:
        self._add(chunk.key, "media", chunk)

    def progress(self, progress: StepProgress) -> None:
        raise AssertionError("no picture is made")

    def allocate(self, key: int, kind: str, meta: dict[str, Any], specs: TensorSpecs) -> Payload:
        return blank_payload(kind, meta, specs)

    def emit(self, key: int, payload: Payload) -> None:
        assert self.ready(key), "a payload was put without a credit"
        if key in self.credits:
            self.credits[key] -= 1
        self._add(key, "payload", payload)

    def consumed(self, key: int, port: str) -> None:
        self._add(key, "consumed", port)

    def finish(self, key: int, usage: Usage) -> None:
        self._add(key, "finish", usage)
        self.ended.add(key)

    def fail(self, key: int, error: ErrorInfo) -> None:
        self._add(key, "fail", error)
        self.ended.add(key)

    def reply(self, query: int, value: Any, error: ErrorInfo | None = None) -> None:
        raise AssertionError("nobody asked")

    def _add(self, key: int, what: str, value: Any) -> None:
        assert key not in self.ended, f"{what} after the last word"
        self.events.append((key, what, value))

    def of(self, key: int, what: str) -> list[Any]:
        return [v for k, w, v in self.events if k == key and w == what]


class Affine(GenerationAdapter[Work, tuple[Work, np.ndarray]]):
    """y = 2x + 1 over rows of equal length, as one operation. One value is poison to its batch, one is refused."""

    tensors = {"y": {"y": TensorSpec("float32", (None,))}}

    def load(self, progress: Callable[[str, float | None], None]) -> dict[str, Any]:
        progress("ready", 1.0)
        self.batches: list[int] = []
        self.order: list[tuple[int, float]] = []
        self.memory = 1 << 30
        self.open_states = 0
        return {"scale": 2.0}

    def open(self, work: Work) -> tuple[Work, Sequence[tuple[Work, np.ndarray]]]:
        rows = work.params.get("rows", [])
        if rows == "bad":
            raise invalid_request("rows are bad", param="rows")
        if rows == "broken":
            raise ZeroDivisionError("secret detail")
        self.open_states += 1
        return work, [(work, np.asarray(r, np.float32)) for r in rows]

    def feed(self, state: Work, port: str, payload: Payload | None, end: bool) -> Sequence[tuple[Work, np.ndarray]]:
        if payload is None:
            return []
        if payload.kind == "bad":
            raise invalid_request("bad payload", param="input")
        return [(state, row) for row in np.atleast_2d(payload.tensors["x"])]

    def batch_key(self, item: tuple[Work, np.ndarray]) -> int:
        return len(item[1])

    def run(self, items: Sequence[tuple[Work, np.ndarray]]) -> Sequence[Result | OmniError]:
        if sum(len(x) for _, x in items) > self.memory:
            raise MemoryError
        batch = np.stack([x for _, x in items])
        if (batch == POISON).any():
            raise FloatingPointError("secret detail")
        self.batches.append(len(items))
        self.order += [(work.key, float(x[0])) for work, x in items]
        out: list[Result | OmniError] = []
        with np.errstate(invalid="ignore"):
            for y in batch * np.float32(2) + np.float32(1):
                if y[0] == 2 * REFUSED + 1:
                    out.append(invalid_request("minus one is not allowed"))
                else:
                    out.append(Result([Piece(Payload("y", tensors={"y": y}))], Usage(completion_tokens=len(y))))
        return out

    def close(self, state: Work) -> None:
        self.open_states -= 1


class Vocoder(GenerationAdapter[Work, tuple[Work, int]]):
    """A sentence of n pieces, each computed when it is asked for."""

    def load(self, progress: Callable[[str, float | None], None]) -> dict[str, Any]:
        self.made: list[tuple[int, int]] = []
        self.closed: list[int] = []
        return {}

    def open(self, work: Work) -> tuple[Work, Sequence[tuple[Work, int]]]:
        return work, [(work, n) for n in work.params["sentences"]]

    def run(self, items: Sequence[tuple[Work, int]]) -> Sequence[Result | OmniError]:
        return [Result(self._speak(work, n), Usage(audio_output_s=n * 0.5)) for work, n in items]

    def _speak(self, work: Work, n: int) -> Iterator[Piece]:
        try:
            for i in range(n):
                self.made.append((work.key, i))
                samples = np.full(4, i / 10, np.float32)
                if work.params.get("nan_at") == i:
                    samples[2] = np.nan
                yield audio_piece(work, samples, 8000)
        finally:
            self.closed.append(work.key)


class Join(GenerationAdapter[list[str], list[str]]):
    """Collects text on two ports and answers once, behind everything."""

    def load(self, progress: Callable[[str, float | None], None]) -> dict[str, Any]:
        return {}

    def open(self, work: Work) -> tuple[list[str], Sequence[list[str]]]:
        self.key = work.key
        return [], []

    def feed(self, state: list[str], port: str, payload: Payload | None, end: bool) -> Sequence[list[str]]:
        if payload is not None:
            state.append(payload.meta["text"])
        return []

    def run(self, items: Sequence[list[str]]) -> Sequence[Result | OmniError]:
        raise AssertionError("there are no items")

    def finish(self, state: list[str]) -> Sequence[Piece]:
        return [Piece(text=TextDelta(self.key, 0, "".join(state), [], "stop"))]


def make(adapter: type[GenerationAdapter[Any, Any]], **limits: int) -> GenerationEngine:
    name = f"{__name__}:{adapter.__name__}"
    engine = GenerationEngine(
        Hello(version=1, stage="affine", replica=0, incarnation=0, engine="", adapter=name, limits=limits)
    )
    engine.load(lambda text, fraction: None)
    return engine


def model(engine: GenerationEngine) -> Any:
    """The adapter, to ask what its model saw."""
    return engine._adapter


def drain(engine: GenerationEngine, out: Recorder, limit: int = 10_000) -> None:
    for _ in range(limit):
        if not engine.runnable or not engine.step(out):
            return
    raise AssertionError("the engine does not come to rest")


def work(key: int, *, ports: Sequence[str] = (), visible: bool = False, routed: bool = True, **params: Any) -> Work:
    return Work(key, f"req-{key}", params, frozenset(ports), visible, routed)


def idle(engine: GenerationEngine) -> bool:
    counters = engine.counters()
    return not engine.runnable and counters["requests"] == counters["waiting"] == counters["running"] == 0


def values(out: Recorder, key: int) -> list[list[float]]:
    return [p.tensors["y"].tolist() for p in out.of(key, "payload")]


def test_items_of_different_requests_run_as_one_batch_and_finish_with_usage() -> None:
    engine, out = make(Affine), Recorder()
    for key in range(3):
        engine.admit(work(key, rows=[[key, 0.0]]))
    assert engine.step(out)
    assert model(engine).batches == [3]
    assert [values(out, k) for k in range(3)] == [[[1.0, 1.0]], [[3.0, 1.0]], [[5.0, 1.0]]]
    assert [out.of(k, "finish") for k in range(3)] == [[Usage(completion_tokens=2)]] * 3
    assert idle(engine)
    assert model(engine).open_states == 0
    counters = engine.counters()
    names = ("batches_total", "batched_items_total", "items_total", "finished_total")
    assert [counters[name] for name in names] == [1, 3, 3, 3]


def test_a_batch_holds_only_compatible_items_and_no_more_than_its_limit() -> None:
    engine, out = make(Affine, max_batch=2), Recorder()
    for key, row in enumerate([[1.0], [1.0, 2.0], [3.0], [4.0], [5.0, 6.0]]):
        engine.admit(work(key, rows=[row]))
    drain(engine, out)
    assert model(engine).batches == [2, 2, 1]
    assert [k for k, _ in model(engine).order] == [0, 2, 1, 4, 3]
    assert out.ended == set(range(5))


def test_a_long_request_does_not_starve_a_short_one() -> None:
    engine, out = make(Affine, max_batch=1), Recorder()
    engine.admit(work(0, rows=[[float(i)] for i in range(100)]))
    engine.step(out)
    engine.admit(work(1, rows=[[7.0]]))
    steps = 0
    while 1 not in out.ended:
        engine.step(out)
        steps += 1
    assert steps <= 2
    drain(engine, out)
    assert values(out, 0) == [[2.0 * i + 1] for i in range(100)]


def test_what_comes_during_a_turn_waits_for_no_second_one() -> None:
    engine, out = make(Affine, max_batch=1), Recorder()
    engine.admit(work(0, rows=[[float(i)] for i in range(3)]))
    engine.step(out)
    engine.admit(work(1, rows=[[7.0]]))
    engine.admit(work(2, rows=[[8.0], [9.0]]))
    drain(engine, out)
    assert [key for key, _ in model(engine).order] == [0, 1, 2, 0, 2, 0]


class Halves(Affine):
    """A row of more than two numbers is run in parts of two, the rest of it as items that follow."""

    def run(self, items: Sequence[tuple[Work, np.ndarray]]) -> Sequence[Result | OmniError]:
        self.rest = [(work, row[2:]) for work, row in items if len(row) > 2]
        return super().run([(work, row[:2]) for work, row in items])

    def more(self, state: Work) -> Sequence[tuple[Work, np.ndarray]]:
        return [item for item in self.rest if item[0] is state]


def test_the_rest_of_an_item_comes_before_the_next_item_of_its_request() -> None:
    engine, out = make(Halves, max_batch=1), Recorder()
    engine.admit(work(0, rows=[[1.0, 2.0, 3.0, 4.0, 5.0], [6.0]]))
    engine.step(out)
    engine.admit(work(1, rows=[[7.0]]))
    drain(engine, out)
    assert values(out, 0) == [[3.0, 5.0], [7.0, 9.0], [11.0], [13.0]]
    assert [key for key, _ in model(engine).order] == [0, 1, 0, 0, 0]


def test_incompatible_requests_take_turns() -> None:
    engine, out = make(Affine), Recorder()
    for key in range(4):  # many of one kind, one of another
        engine.admit(work(key, rows=[[1.0]] * 50))
    engine.admit(work(9, rows=[[1.0, 2.0]]))
    for _ in range(2):
        engine.step(out)
    assert 9 in out.ended


def test_a_bare_request_finishes() -> None:
    engine, out = make(Affine), Recorder()
    engine.admit(work(1, rows=[]))
    drain(engine, out)
    assert out.of(1, "finish") == [Usage()]
    assert idle(engine)


def test_what_follows_the_last_output_waits_for_every_port() -> None:
    engine, out = make(Join), Recorder()
    engine.admit(work(1, ports=["a", "b"]))
    assert engine.feed(1, "a", text_payload("to be "), True)
    assert not engine.runnable
    assert engine.feed(1, "b", text_payload("or not"), False)
    assert not engine.runnable
    engine.feed(1, "b", None, True)
    drain(engine, out)
    assert [w for _, w, _ in out.events] == ["text", "finish"]
    assert out.of(1, "text") == ["to be or not"]
    assert idle(engine)


def test_fed_tensors_are_copied_and_their_credit_goes_back_when_the_last_item_starts() -> None:
    engine, out = make(Affine, max_batch=1), Recorder()
    engine.admit(work(1, ports=["x"]))
    view = np.array([[1.0], [2.0]], np.float32)
    view.flags.writeable = False
    assert engine.feed(1, "x", Payload("x", tensors={"x": view}), False) is False
    view.flags.writeable = True
    view[:] = 99.0
    engine.step(out)
    assert out.of(1, "consumed") == []
    engine.step(out)
    assert out.of(1, "consumed") == ["x"]
    assert values(out, 1) == [[3.0], [5.0]]
    assert not engine.runnable
    engine.feed(1, "x", None, True)
    drain(engine, out)
    assert out.ended == {1}


def test_an_item_without_credit_does_not_start_and_does_not_hold_others() -> None:
    engine, out = make(Affine), Recorder(credits={1: 1, 2: 0})
    engine.admit(work(1, rows=[[1.0], [2.0], [3.0]]))
    engine.admit(work(2, rows=[[5.0]]))
    engine.admit(work(3, rows=[[6.0]]))
    drain(engine, out)
    assert model(engine).order == [(1, 1.0), (3, 6.0)]
    assert out.ended == {3}
    assert engine.runnable
    assert not engine.step(out)
    out.credits.update({1: 2, 2: 1})
    drain(engine, out)
    assert out.ended == {1, 2, 3}
    assert values(out, 1) == [[3.0], [5.0], [7.0]]


def test_a_sentence_leaves_piece_by_piece_as_credits_allow() -> None:
    engine, out = make(Vocoder), Recorder(credits={1: 2})
    engine.admit(work(1, visible=True, sentences=[5]))
    drain(engine, out)
    assert model(engine).made == [(1, 0), (1, 1)], "pieces that cannot leave are not computed"
    out.credits[1] = 10
    drain(engine, out)
    samples = [p.tensors["samples"][0] for p in out.of(1, "payload")]
    assert samples == [np.float32(i / 10) for i in range(5)]
    assert [c.data for c in out.of(1, "media")] == [pcm16(p.tensors["samples"]) for p in out.of(1, "payload")]
    assert out.of(1, "finish") == [Usage(audio_output_s=2.5)]
    assert model(engine).closed == [1]
    assert idle(engine)


class Counted(Vocoder):
    """Learns what an item used only as it computes."""

    def run(self, items: Sequence[tuple[Work, int]]) -> Sequence[Result | OmniError]:
        return [Result(self._count(n), Usage(prompt_tokens=3)) for _, n in items]

    def _count(self, n: int) -> Iterator[Piece]:
        for _ in range(n):
            yield Piece(usage=Usage(completion_tokens=1))


def test_usage_of_pieces_is_added_to_that_of_their_item() -> None:
    engine, out = make(Counted), Recorder()
    engine.admit(work(1, sentences=[2, 3]))
    drain(engine, out)
    assert out.of(1, "finish") == [Usage(prompt_tokens=6, completion_tokens=5)]


def test_every_field_of_usage_is_added() -> None:
    names = Usage.__struct_fields__
    one = Usage(**{name: type(getattr(Usage(), name))(place + 1) for place, name in enumerate(names)})
    both = add_usage(one, one)
    assert [getattr(both, name) for name in names] == [2 * getattr(one, name) for name in names]
    assert usage_problem(both) is None


def test_pieces_and_new_batches_alternate() -> None:
    engine, out = make(Vocoder), Recorder()
    engine.admit(work(1, sentences=[100]))
    engine.step(out)
    engine.admit(work(2, sentences=[1]))
    for _ in range(3):
        engine.step(out)
    assert out.of(2, "finish") == [Usage(audio_output_s=0.5)]
    assert 1 not in out.ended


def test_abort_frees_at_once_also_between_pieces() -> None:
    engine, out = make(Vocoder), Recorder()
    engine.admit(work(1, sentences=[100, 100]))
    engine.step(out)
    engine.abort(1)
    assert idle(engine)
    assert model(engine).closed == [1]
    engine.abort(1)
    assert engine.feed(1, "x", None, True)
    drain(engine, out)
    assert out.ended == set()
    assert engine.counters()["aborted_total"] == 1


def test_only_the_guilty_item_of_a_batch_fails(caplog: pytest.LogCaptureFixture) -> None:
    engine, out = make(Affine), Recorder()
    for key, value in enumerate([1.0, 1e7, 2.0, -1.0]):
        engine.admit(work(key, rows=[[value]]))
    with caplog.at_level(logging.ERROR):
        drain(engine, out)
    assert values(out, 0) == [[3.0]]
    assert values(out, 2) == [[5.0]]
    (error,) = out.of(1, "fail")
    assert (error.status, error.code) == (500, "stage_failed")
    assert "affine" in error.message
    assert "secret" not in error.message
    assert out.of(3, "fail")[0].status == 400
    assert [getattr(r, "request", None) for r in caplog.records if r.levelno == logging.ERROR] == ["req-1"]
    assert "FloatingPointError: secret detail" in caplog.text, "the traceback is for the log"
    assert engine.counters()["failures_total"] == 2
    assert idle(engine)
    assert model(engine).open_states == 0


def test_a_batch_out_of_memory_runs_in_halves_and_the_limit_recovers() -> None:
    engine, out = make(Affine, max_batch=8), Recorder()
    model(engine).memory = 2
    for key in range(8):
        engine.admit(work(key, rows=[[float(key)]]))
    drain(engine, out)
    assert model(engine).batches == [2, 2, 2, 2]
    assert len(out.ended) == 8
    assert not any(out.of(k, "fail") for k in range(8))
    assert engine.counters()["out_of_memory_total"] == 2
    model(engine).memory = 100
    for key in range(100, 100 + 3 * RECOVERY_BATCHES):
        engine.admit(work(key, rows=[[0.0]]))
        drain(engine, out)
    for key in range(500, 508):
        engine.admit(work(key, rows=[[0.0]]))
    engine.step(out)
    assert model(engine).batches[-1] == 5


def test_a_lone_item_out_of_memory_fails_alone() -> None:
    engine, out = make(Affine), Recorder()
    model(engine).memory = 1
    engine.admit(work(1, rows=[[0.0, 1.0]]))
    engine.admit(work(2, rows=[[5.0]]))
    drain(engine, out)
    assert "memory" in out.of(1, "fail")[0].message
    assert values(out, 2) == [[11.0]]


def test_a_lone_item_out_of_memory_makes_the_batches_of_others_no_smaller() -> None:
    engine, out = make(Affine, max_batch=8), Recorder()
    model(engine).memory = 8
    engine.admit(work(1, rows=[[0.0] * 9]))
    drain(engine, out)
    assert "memory" in out.of(1, "fail")[0].message
    for key in range(10, 18):
        engine.admit(work(key, rows=[[0.0]]))
    drain(engine, out)
    assert model(engine).batches == [8]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_number_that_is_not_finite_stops_at_the_stage(value: float) -> None:
    engine, out = make(Affine), Recorder()
    engine.admit(work(1, rows=[[0.0, value]]))
    engine.admit(work(2, rows=[[0.0, 1.0]]))
    drain(engine, out)
    assert "not finite" in out.of(1, "fail")[0].message
    assert out.of(1, "payload") == []
    assert 2 in out.ended


def test_audio_that_is_not_finite_fails_its_request_only() -> None:
    engine, out = make(Vocoder), Recorder()
    engine.admit(work(1, visible=True, routed=False, sentences=[3], nan_at=1))
    engine.admit(work(2, visible=True, routed=False, sentences=[3]))
    drain(engine, out)
    assert len(out.of(1, "media")) == 1
    assert out.of(1, "fail")[0].code == "stage_failed"
    assert len(out.of(2, "media")) == 3
    assert out.of(2, "payload") == []


class Faulty(Affine):
    """Gives what ``work.params["make"]`` makes."""

    def run(self, items: Sequence[tuple[Work, np.ndarray]]) -> Sequence[Result | OmniError]:
        return [w.params["make"](w) for w, _ in items]


@pytest.mark.parametrize(
    ("make_result", "words"),
    [
        (lambda w: Result([Piece(Payload("y", tensors={"y": np.zeros(3)}))]), "float64[3], not float32[n]"),
        (lambda w: Result([Piece(Payload("y", tensors={"y": np.zeros((2, 2), np.float32)}))]), "not float32[n]"),
        (lambda w: Result([Piece(Payload("y"))]), "lacks tensor 'y'"),
        (lambda w: None, "returned None for an item"),
        (lambda w: Result([Piece(Payload("z", tensors={"a": [1.0]}))]), "not a numpy array"),  # type: ignore[dict-item]
        (lambda w: Result([Piece(Payload("z", tensors={"a": np.zeros((2, 2)).T[:1]}))]), "C order"),
        (
            lambda w: Result(
                [Piece(Payload("z", tensors={"a": np.array([0x7F80], np.uint16)}, dtypes={"a": "bfloat16"}))]
            ),
            "not finite",
        ),
        (lambda w: Result([Piece(text=TextDelta(77, 0, "", []))]), "another request"),
        (lambda w: Result([Piece(media=MediaChunk(77, "audio", {"channels": 1}, b""))]), "another request"),
        (
            lambda w: Result([Piece(media=MediaChunk(w.key, "audio", {"channels": 1, "sample_rate": 8000}, b"abc"))]),
            "whole frames",
        ),
    ],
)
def test_outputs_that_break_their_declaration_are_named(make_result: Callable[[Work], Any], words: str) -> None:
    engine, out = make(Faulty), Recorder()
    engine.admit(work(1, rows=[[0.0]], make=make_result))
    drain(engine, out)
    (error,) = out.of(1, "fail")
    assert words in error.message
    assert error.stage == "affine"
    assert idle(engine)


def test_admission_refuses_what_the_adapter_refuses_and_more_than_it_holds() -> None:
    engine = make(Affine, max_requests=1)
    with pytest.raises(OmniError) as refused:
        engine.admit(work(1, rows="bad"))
    assert (refused.value.info.status, refused.value.info.param) == (400, "rows")
    with pytest.raises(OmniError) as broken:
        engine.admit(work(1, rows="broken"))
    assert broken.value.info.code == "stage_failed"
    assert "secret" not in broken.value.info.message
    engine.admit(work(1, ports=["x"]))
    with pytest.raises(OmniError) as full:
        engine.admit(work(2, ports=["x"]))
    assert full.value.info.status == 429
    engine.close()
    assert idle(engine)
    assert model(engine).open_states == 0


def test_bad_input_fails_the_request_and_frees_it() -> None:
    engine, out = make(Affine), Recorder()
    engine.admit(work(1, ports=["x"]))
    with pytest.raises(OmniError) as bad:
        engine.feed(1, "x", Payload("bad"), False)
    assert bad.value.info.status == 400
    engine.admit(work(2, ports=["x"]))
    with pytest.raises(OmniError) as crash:
        engine.feed(2, "x", Payload("x"), False)
    assert crash.value.info.code == "stage_failed"
    assert idle(engine)
    drain(engine, out)
    assert out.events == []


def test_pcm16_clips_rounds_and_refuses() -> None:
    assert (
        pcm16(np.array([-2.0, -1.0, 0.0, 0.5, 1.0, 2.0], np.float32))
        == np.array([-32767, -32767, 0, 16384, 32767, 32767], "<i2").tobytes()
    )
    with pytest.raises(OutputError):
        pcm16(np.array([1, 2]))
    with pytest.raises(OutputError):
        audio_piece(work(1), np.zeros((1, 2), np.float32), 8000)
    assert audio_piece(work(1, routed=False), np.zeros(2, np.float32), 8000) == Piece()
    both = audio_piece(work(1, visible=True), np.zeros(2, np.float32), 8000, sentence=3)
    assert both.payload is not None
    assert both.payload.meta == pcm_payload(np.zeros(2), 8000, sentence=3).meta
    assert both.media == MediaChunk(1, "audio", {"sample_rate": 8000, "channels": 1, "sentence": 3}, b"\0" * 4)


# -- random runs ------------------------------------------------------------------------------------------------------

VALUES = st.sampled_from([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, POISON, REFUSED, NAN])
ROWS = st.lists(st.tuples(VALUES, st.integers(1, 2)), max_size=6)


@st.composite
def scripts(draw: st.DrawFn) -> list[tuple[Any, ...]]:
    """Operations in order: admissions (some with a port that is fed later), feeds, aborts, credits and steps."""
    requests = draw(st.lists(st.tuples(ROWS, st.booleans()), min_size=1, max_size=6))
    ops: list[tuple[Any, ...]] = []
    for key, (rows, fed) in enumerate(requests):
        ops.append(("admit", key, [] if fed else rows, fed))
        if fed:
            ops += [("feed", key, [row]) for row in rows] + [("end", key)]
    queues = [[op for op in ops if op[1] == key] for key in range(len(requests))]
    script: list[tuple[Any, ...]] = []
    while any(queues):
        choice = draw(st.integers(0, len(queues) + 2))
        if choice < len(queues) and queues[choice]:
            script.append(queues[choice].pop(0))
        elif choice == len(queues):
            script.append(("abort", draw(st.integers(0, len(queues)))))
        elif choice == len(queues) + 1:
            script.append(("credit", draw(st.integers(0, len(queues)))))
        else:
            script.append(("step",))
    return script


def expected(rows: Sequence[tuple[float, int]]) -> tuple[list[list[float]], bool]:
    """What a request gives when it is alone: its outputs, and whether it fails behind them."""
    done: list[list[float]] = []
    for value, width in rows:
        if value in (POISON, REFUSED) or value != value:
            return done, True
        done.append([2 * value + 1] * width)
    return done, False


@settings(max_examples=150, deadline=None)
@given(scripts(), st.integers(1, 4), st.integers(2, 6))
def test_random_runs_keep_order_and_end_each_request_once(
    script: list[tuple[Any, ...]], max_batch: int, memory: int
) -> None:
    engine, out = make(Affine, max_batch=max_batch), Recorder()
    model(engine).memory = memory
    given_rows: dict[int, list[tuple[float, int]]] = {}
    fed: set[int] = set()
    aborted: set[int] = set()
    for op in [*script, ("top up",)]:
        match op:
            case ("admit", key, rows, has_port):
                given_rows[key] = list(rows)
                out.credits[key] = 1
                engine.admit(work(key, ports=["x"] if has_port else [], rows=[[v] * n for v, n in rows]))
                if has_port:
                    fed.add(key)
            case ("feed", key, rows):
                given_rows[key] += rows
                ((value, width),) = rows
                engine.feed(key, "x", Payload("x", tensors={"x": np.full((1, width), value, np.float32)}), False)
            case ("end", key):
                engine.feed(key, "x", None, True)
            case ("abort", key):
                if key in engine._requests:
                    aborted.add(key)
                engine.abort(key)
            case ("credit", key):
                if key in out.credits:
                    out.credits[key] += 1
            case ("step",):
                if engine.runnable:
                    engine.step(out)
            case _:
                for key in out.credits:
                    out.credits[key] = 100
                drain(engine, out)
    assert idle(engine)
    assert model(engine).open_states == 0
    for key, rows in given_rows.items():
        outputs, fails = expected(rows)
        got = values(out, key)
        assert got == outputs[: len(got)], "order, and the same as alone"
        ends = len(out.of(key, "finish")), len(out.of(key, "fail"))
        if key in aborted:
            assert ends == (0, 0)
            continue
        assert ends == ((0, 1) if fails else (1, 0))
        assert got == outputs
        if key in fed and not fails:
            assert len(out.of(key, "consumed")) == len(rows)
    counters = engine.counters()
    assert counters["finished_total"] + counters["failures_total"] + counters["aborted_total"] == len(given_rows)
