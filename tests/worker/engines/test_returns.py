"""What an adapter returns that its contract does not allow: one request fails, and the message names the method."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from tests.worker.engines.ar_driver import Collector, engine_of, load_adapter
from tests.worker.engines.ar_driver import work as prompt_work
from tests.worker.engines.test_generation import Affine, Recorder, drain, idle, model, values, work

from omni_actors.connectors.payload import Payload
from omni_actors.models.causal_lm.adapter import CausalLM
from omni_actors.models.tiny import build
from omni_actors.protocol.errors import OmniError
from omni_actors.protocol.frames import Hello
from omni_actors.protocol.request import MediaChunk, TextDelta, TokenLogprob, Usage
from omni_actors.worker.checks import OutputError
from omni_actors.worker.engine import Work
from omni_actors.worker.engines.autoregressive import AutoregressiveEngine
from omni_actors.worker.engines.autoregressive.adapter import PromptInput
from omni_actors.worker.engines.oneshot import GenerationEngine
from omni_actors.worker.engines.oneshot.outputs import Piece, Result

BAD, GOOD = 1, 2


def make(adapter: type[Affine]) -> GenerationEngine:
    name = f"{__name__}:{adapter.__name__}"
    engine = GenerationEngine(Hello(version=1, stage="affine", replica=0, incarnation=0, engine="", adapter=name))
    engine.load(lambda said, fraction: None)
    return engine


GOOD_ROW, GOOD_VALUES = [3.0], [[7.0]]


class Returns(Affine):
    """Request ``BAD`` gets what ``wrong`` says, of the method that it names; every other one what is right."""

    wrong: tuple[str, Callable[[], Any]] = ("", lambda: None)

    def open(self, work: Work) -> Any:
        return self._or("open", work, super().open(work))

    def feed(self, state: Work, port: str, payload: Payload | None, end: bool) -> Any:
        return self._or("feed", state, super().feed(state, port, payload, end))

    def batch_key(self, item: tuple[Work, np.ndarray]) -> Any:
        return self._or("batch_key", item[0], super().batch_key(item))

    def run(self, items: Sequence[tuple[Work, np.ndarray]]) -> Any:
        if self.wrong[0] == "run, of all" and any(work.key == BAD for work, _ in items):
            return self.wrong[1]()
        results = super().run(items)
        return [self._or("run", work, result) for (work, _), result in zip(items, results, strict=True)]

    def more(self, state: Work) -> Any:
        return self._or("more", state, ())

    def finish(self, state: Work) -> Any:
        return self._or("finish", state, ())

    def _or(self, method: str, work: Work, right: Any) -> Any:
        return self.wrong[1]() if work.key == BAD and self.wrong[0] == method else right


def piece() -> Piece:
    return Piece(Payload("y", tensors={"y": np.zeros(1, np.float32)}))


def lazily(*pieces: Any) -> Iterator[Any]:
    yield from pieces


def text(*fields: Any, **named: Any) -> Piece:
    return Piece(text=TextDelta(*fields, **named))


def audio(data: Any = b"\0\0", **meta: Any) -> Piece:
    return Piece(media=MediaChunk(BAD, "audio", {"sample_rate": 8000, "channels": 1, **meta}, data))


def image(**meta: Any) -> Piece:
    return Piece(media=MediaChunk(BAD, "image", meta, b"file"))


class Rude:
    """Compares with nothing."""

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("secret detail")

    def __hash__(self) -> int:
        return 1


def usage(**fields: Any) -> Result:
    return Result([piece()], Usage(**fields))


CASES: list[tuple[str, Callable[[], Any], str, str]] = [
    # method, what it returns, got, expected
    ("open", lambda: None, "None", "a tuple of the request's state and its items"),
    ("open", lambda: ["state", []], "list", "a tuple of the request's state and its items"),
    ("open", lambda: ("state", None), "None", "a sequence of items"),
    ("open", lambda: ("state", "items"), "str", "a sequence of items"),
    ("feed", lambda: None, "None", "a sequence of items"),
    ("feed", lambda: {1: 2}, "dict", "a sequence of items"),
    ("batch_key", lambda: [1], "list", "a hashable value that compares with =="),
    ("batch_key", Rude, "Rude, which cannot be compared,", "a hashable value that compares with =="),
    ("run, of all", lambda: None, "None", "a sequence with a Result or OmniError for each item"),
    ("run, of all", lambda: lazily(), "generator", "a sequence with a Result or OmniError for each item"),
    ("run, of all", list, "0 results for 1 items", "a Result or OmniError for each item"),
    ("run", lambda: None, "None for an item", "Result or OmniError"),
    ("run", lambda: Result, "the class Result for an item", "Result or OmniError"),
    ("run", lambda: [piece()], "list for an item", "Result or OmniError"),
    ("run", lambda: Result(piece()), "a Result whose pieces are Piece", "an iterable of Piece"),  # type: ignore[arg-type]
    ("run", lambda: Result(None), "a Result whose pieces are None", "an iterable of Piece"),  # type: ignore[arg-type]
    ("run", lambda: Result("text"), "a Result whose pieces are str", "an iterable of Piece"),  # type: ignore[arg-type]
    ("run", lambda: Result([None]), "None as a piece", "Piece"),  # type: ignore[list-item]
    ("run", lambda: Result(lazily(piece(), None)), "None as a piece", "Piece"),
    ("run", lambda: Result([], None), "a Result with None as usage", "Usage"),  # type: ignore[arg-type]
    ("run", lambda: usage(completion_tokens="5"), "a Usage whose completion_tokens is str", "int"),
    ("run", lambda: usage(prompt_tokens=True), "a Usage whose prompt_tokens is bool", "int"),
    ("run", lambda: usage(completion_tokens=np.int64(5)), "a Usage whose completion_tokens is int64", "int"),
    ("run", lambda: usage(audio_output_s=np.float64(1)), "a Usage whose audio_output_s is float64", "float"),
    ("run", lambda: usage(audio_output_s=float("nan")), "a Usage whose audio_output_s is nan", "a finite number"),
    ("run", lambda: usage(completion_tokens=-1), "a Usage whose completion_tokens is -1", "0 or more"),
    ("run", lambda: usage(steps=20.0), "a Usage whose steps is float", "int"),
    ("run", lambda: usage(skipped_steps=-1), "a Usage whose skipped_steps is -1", "0 or more"),
    ("run", lambda: usage(images=None), "a Usage whose images is None", "int"),
    (
        "run",
        lambda: Result([image(index="0")]),
        "a MediaChunk of an image whose meta['index'] is str",
        "a whole number",
    ),
    ("run", lambda: Result([image(preview=True)]), "an image whose meta['preview'] is bool", "a whole number"),
    ("run", lambda: usage(completion_tokens=1 << 70), "a Usage whose completion_tokens is int", "int"),
    ("run", lambda: Result([Piece("text")]), "a Piece with str", "Payload"),  # type: ignore[arg-type]
    ("run", lambda: Result([Piece(Payload(1))]), "a Payload whose kind is int", "str"),  # type: ignore[arg-type]
    ("run", lambda: Result([Piece(Payload("z", {1: 2}))]), "whose meta cannot be sent", "a dict of plain builtins"),  # type: ignore[dict-item]
    ("run", lambda: Result([Piece(Payload("z", {"a": object()}))]), "whose meta cannot be sent", "plain builtins"),
    ("run", lambda: Result([Piece(Payload("z", tensors=[]))]), "whose tensors are list", "a mapping of arrays"),  # type: ignore[arg-type]
    ("run", lambda: Result([Piece(text="hi")]), "a Piece with str", "TextDelta"),  # type: ignore[arg-type]
    ("run", lambda: Result([text(BAD, 0, 5, [])]), "a TextDelta whose text is int", "str"),
    ("run", lambda: Result([text(BAD, 0, b"hi", [])]), "a TextDelta whose text is bytes", "str"),
    ("run", lambda: Result([text(BAD, "0", "hi", [])]), "a TextDelta whose index is str", "int"),
    ("run", lambda: Result([text(BAD, 0, "hi", None)]), "a TextDelta whose token_ids is None", "array"),
    ("run", lambda: Result([text(BAD, 0, "hi", ["a"])]), "a TextDelta whose token_ids holds str", "int"),
    ("run", lambda: Result([text(BAD, 0, "hi", [np.int32(1)])]), "a TextDelta whose token_ids is list", "list[int]"),
    ("run", lambda: Result([text(BAD, 0, "", [], 1)]), "a TextDelta whose finish_reason is int", "str"),
    ("run", lambda: Result([text(BAD, 0, "", [], None, [0.5])]), "whose logprobs holds float", "array"),
    ("run", lambda: Result([text(BAD, 0, "", [], None, [TokenLogprob(1, "a", 0.0)])]), "whose logprobs", ""),  # type: ignore[arg-type]
    ("run", lambda: Result([text(BAD, 0, "", [], meta={1: 2})]), "a TextDelta whose meta holds int", "str"),
    ("run", lambda: Result([text(7, 0, "", [])]), "text of another request", "the key of the request's Work"),
    ("run", lambda: Result([audio("abc")]), "a MediaChunk whose data is str", "bytes"),
    ("run", lambda: Result([audio(b"abc")]), "audio that is not whole frames", "2 bytes for each sample"),
    ("run", lambda: Result([audio(channels=None)]), "meta['channels'] is None", "a whole number above 0"),
    ("run", lambda: Result([audio(sample_rate="8k")]), "meta['sample_rate'] is str", "a whole number above 0"),
    ("run", lambda: Result([Piece(usage=5)]), "a Piece with int", "Usage"),  # type: ignore[arg-type]
    ("more", lambda: None, "None", "a sequence of items"),
    ("finish", lambda: None, "None", "a sequence of Piece"),
    ("finish", lambda: [None], "None as a piece", "Piece"),
    ("finish", lambda: [text(BAD, 0, 5, [])], "a TextDelta whose text is int", "str"),
]


@pytest.mark.parametrize(("method", "returned", "got", "expected"), CASES)
def test_a_wrong_return_fails_its_request_alone_and_is_named(
    method: str, returned: Callable[[], Any], got: str, expected: str
) -> None:
    """Two requests in one batch: the one fails with adapter, method, got and expected, the other comes through."""
    engine, out = make(Returns), Recorder()
    model(engine).wrong = (method, returned)
    refused = None
    engine.admit(work(GOOD, rows=[GOOD_ROW], routed=True))
    try:
        if method == "feed":
            engine.admit(work(BAD, ports=["x"]))
            engine.feed(BAD, "x", Payload("x", tensors={"x": np.array([[1.0]], np.float32)}), True)
        else:
            engine.admit(work(BAD, rows=[[1.0]], visible=True))
    except OmniError as error:
        refused = error.info
    drain(engine, out)
    failures = [refused] if refused is not None else out.of(BAD, "fail")
    assert [it.status for it in failures] == [500]
    message = failures[0].message
    name = method.partition(",")[0]
    assert message.startswith(f"Stage 'affine': Bad output: Returns.{name} returned "), message
    assert got in message, message
    assert f"expected {expected}" in message or expected in message.partition("expected ")[2], message
    assert "secret" not in message
    assert values(out, GOOD) == GOOD_VALUES
    assert len(out.of(GOOD, "finish")) == 1
    assert idle(engine)


class NoFacts(Affine):
    facts: Any = None

    def load(self, progress: Callable[[str, float | None], None]) -> dict[str, Any]:
        return type(self).facts  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (None, "NoFacts.load returned None; expected a dict"),
        ({1: 2}, "NoFacts.load returned a dict with the key 1; expected names as keys"),
        ({"voices": object()}, "NoFacts.load returned a dict whose 'voices' cannot be sent"),
        ({"sample_rate": "24k"}, "NoFacts.load returned a dict whose 'sample_rate' is str; expected int"),
    ],
)
def test_what_load_returns_is_checked(facts: Any, words: str) -> None:
    NoFacts.facts = facts
    with pytest.raises(OutputError) as wrong:
        make(NoFacts)
    assert str(wrong.value).startswith(words)


class NoNumbers(Affine):
    def counters(self) -> dict[str, float]:
        return {"hits": "many"}  # type: ignore[dict-item]


def test_counters_that_are_no_numbers_are_named() -> None:
    with pytest.raises(OutputError, match=r"NoNumbers.counters returned a dict whose 'hits' is str; expected a number"):
        make(NoNumbers).counters()


def not_a_class() -> None:
    """Nothing that an engine could drive."""


@pytest.mark.parametrize(
    ("adapter", "words"),
    [
        ("no.such.module:Thing", "adapter 'no.such.module:Thing' cannot be imported: ModuleNotFoundError"),
        (f"{__name__}:Missing", f"adapter '{__name__}:Missing' cannot be imported: AttributeError"),
        (f"{__name__}:not_a_class", "is function, and not a subclass of GenerationAdapter"),
        (f"{__name__}:Rude", "is not a subclass of GenerationAdapter"),
        ("omni_actors.worker.engines.oneshot.adapter:GenerationAdapter", "does not define load, open, run"),
    ],
)
def test_a_name_that_is_no_adapter_is_a_sentence_about_it(adapter: str, words: str) -> None:
    hello = Hello(version=1, stage="affine", replica=0, incarnation=0, engine="", adapter=adapter)
    with pytest.raises(OmniError) as refused:
        GenerationEngine(hello).load(lambda said, fraction: None)
    assert words in refused.value.info.message


# ---- language models


class WrongLM(CausalLM):
    wrong: tuple[str, Callable[[], Any]] = ("", lambda: None)

    def open(self, work: Work) -> Any:
        return self._or("open", work.key, super().open(work))

    def sampling(self, work: Work) -> Any:
        return self._or("sampling", work.key, super().sampling(work))

    def ready(self, key: int) -> Any:
        return self._or("ready", key, True)

    def record(self, key: int) -> Any:
        return self._or("record", key, b"")

    def shown(self, delta: TextDelta) -> Any:
        return self._or("shown", delta.key, delta)

    def output(self, release: Any) -> Any:
        return self._or("output", release.key, super().output(release))

    def _or(self, method: str, key: int, right: Any) -> Any:
        return self.wrong[1]() if key == BAD and self.wrong[0] == method else right


@pytest.fixture(scope="module")
def language_model(tmp_path_factory: pytest.TempPathFactory) -> CausalLM:
    folder = tmp_path_factory.mktemp("returns") / "lm"
    build("causal-lm", folder)
    return load_adapter(str(folder))


PROMPTED: list[tuple[str, Callable[[], Any], str]] = [
    ("open", lambda: None, "WrongLM.open returned None; expected PromptInput"),
    ("open", lambda: PromptInput("text"), "a PromptInput whose tokens are str; expected a list of token ids"),  # type: ignore[arg-type]
    ("open", lambda: PromptInput(["a"]), "a PromptInput with a token that is no int"),  # type: ignore[list-item]
    ("open", lambda: PromptInput([1], max_tokens="9"), "a PromptInput whose max_tokens is str; expected int or None"),  # type: ignore[arg-type]
    ("sampling", lambda: None, "WrongLM.sampling returned None; expected Sampling"),
    ("ready", lambda: None, "WrongLM.ready returned None; expected True or False"),
    ("record", lambda: "data", "WrongLM.record returned str; expected bytes"),
    ("shown", lambda: None, "WrongLM.shown returned None; expected TextDelta"),
    ("shown", lambda: TextDelta(BAD, 0, 5, []), "WrongLM.shown returned a TextDelta whose text is int; expected str"),  # type: ignore[arg-type]
    ("output", lambda: "text", "WrongLM.output returned str; expected Payload"),
    ("output", lambda: Payload("text", {1: 2}), "WrongLM.output returned a Payload whose meta cannot be sent"),  # type: ignore[dict-item]
]


@pytest.mark.parametrize(("method", "returned", "words"), PROMPTED)
def test_a_wrong_return_of_a_language_model_fails_its_request_alone(
    language_model: CausalLM, method: str, returned: Callable[[], Any], words: str
) -> None:
    language_model.__class__ = WrongLM
    adapter: Any = language_model
    adapter.wrong = (method, returned)
    engine, out = engine_of(language_model, kv_blocks=64), Collector()
    failed = None
    engine.admit(prompt_work(GOOD, [5, 6, 7], max_tokens=3, routed=True))
    try:
        engine.admit(prompt_work(BAD, [5, 6, 7], max_tokens=3, routed=True))
    except OutputError as error:  # which the worker's loop words
        failed = str(error)
    for _ in range(20):
        if engine.runnable:
            engine.step(out)
    if failed is None:
        assert out.errors[BAD].status == 500
        failed = out.errors[BAD].message
    assert words in failed, failed
    assert out.usage[GOOD].completion_tokens == 3
    assert engine.counters()["requests"] == 0


class NoLogits:
    def __init__(self, inner: Any, made: Any) -> None:
        self.kv_shape, self.vocab_size, self.device = inner.kv_shape, inner.vocab_size, inner.device
        self._made = made

    def forward(self, inputs: Any, attention: Any) -> Any:
        return self._made


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (None, "NoLogits.forward returned None; expected StepOutput"),
        (torch.zeros(1, 3), "NoLogits.forward returned Tensor; expected StepOutput"),
    ],
)
def test_a_network_that_gives_no_logits_is_named(language_model: CausalLM, made: Any, words: str) -> None:
    adapter = copy.copy(language_model)
    adapter.decoder = NoLogits(language_model.decoder, made)  # type: ignore[assignment]
    engine: AutoregressiveEngine = engine_of(adapter, kv_blocks=8)
    with pytest.raises(OutputError) as wrong:
        engine._runner.warm_up(engine._pool, engine._prompts.max_len)
    assert words in str(wrong.value)
