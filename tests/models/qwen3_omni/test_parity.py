"""The four stages together are transformers' model: token by token, state by state, code by code, sample by sample."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.models.omni.line import Answer, Line
from tests.models.omni.media import Given, audio, image
from tests.models.qwen3_omni.cases import CASES, FRAMES, TOKENS, Case
from tests.models.qwen3_omni.whole import Outcome, Whole

from omni_actors.connectors.payload import Payload
from omni_actors.models.qwen3_omni.pipeline import PIPELINE
from omni_actors.worker.byte_cache import ByteCache

TOLERANCES = {"logits": 1e-3, "states": 1e-3, "talker logits": 1e-3, "samples": 1e-4}
"""Largest differences. Logits and states are of the order of 10, samples of 1."""

TIE = 1e-4
"""Two best logits nearer than this are a tie: rounding decides."""


@pytest.fixture(scope="module")
def folder(tiny_model: Callable[[str], Path]) -> Path:
    return tiny_model("qwen3-omni")


@pytest.fixture(scope="module")
def line(folder: Path) -> Line:
    return Line(PIPELINE, folder)


@pytest.fixture(scope="module")
def whole(folder: Path) -> Whole:
    return Whole(folder)


@pytest.fixture(scope="module")
def outcomes(whole: Whole) -> dict[str, Outcome]:
    return {case.name: whole.run(case.messages, case.given, case.voice, TOKENS, FRAMES) for case in CASES}


def differences(answer: Answer, outcome: Outcome) -> dict[str, float]:
    """How far the answer is from the reference in each respect; ``inf`` where even the shape is another. Tokens and
    codes count those that differ."""
    assert answer.error is None, answer.error
    first = len(outcome.prompt)
    steps = [answer.logits["thinker"].get(first + i) for i in range(len(outcome.tokens))]
    drawn = sorted(answer.logits["talker"])[: len(outcome.talker_logits)]
    talker = [answer.logits["talker"][position] for position in drawn]
    spoken = torch.isfinite(talker[0]) if talker else torch.empty(0, dtype=torch.bool)
    codes = answer.joined("talker", "codes") if answer.payloads["talker"] else np.empty((0, 8))
    samples = answer.joined("code2wav", "samples") if answer.payloads["code2wav"] else np.empty(0)
    return {
        "tokens": _unequal(np.array(answer.tokens), np.array(outcome.tokens)),
        "logits": _apart(_stack(steps), outcome.logits.numpy()),
        "states": _apart(answer.joined("thinker", "states"), outcome.states.numpy()),
        "codes": _unequal(codes, outcome.codes.numpy()),
        "talker logits": _apart(_stack(talker)[:, spoken], outcome.talker_logits.numpy()[: len(talker), spoken]),
        "samples": _apart(samples, outcome.samples),
    }


def _stack(rows: list[torch.Tensor | None]) -> np.ndarray[Any, Any]:
    there = [row.numpy() for row in rows if row is not None]
    return np.stack(there) if there else np.empty((0, 0))


def _unequal(got: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> float:
    return float((got != expected).sum()) if got.shape == expected.shape else float("inf")


def _apart(got: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> float:
    return float(np.abs(got - expected).max(initial=0)) if got.shape == expected.shape else float("inf")


def check(case: Case, answer: Answer, outcome: Outcome) -> None:
    found = differences(answer, outcome)
    worse = {name: value for name, value in found.items() if value > TOLERANCES.get(name, 0)}
    assert not worse, (case.name, found)


# -- the reference itself


def ties(logits: torch.Tensor) -> int:
    best = logits.topk(2).values
    return int((best[:, 0] - best[:, 1] < TIE).sum())


def test_the_reference_is_worth_comparing_with(outcomes: dict[str, Outcome]) -> None:
    """No ties that rounding decides; answers that neither repeat themselves nor one another; audible speech."""
    assert len(outcomes) == 24
    for outcome in outcomes.values():
        assert ties(outcome.logits) == 0
        assert len(set(outcome.tokens)) > len(outcome.tokens) // 2
        assert len(outcome.codes) == 1 or len({tuple(frame) for frame in outcome.codes.tolist()}) > 1
    assert len({tuple(outcome.tokens) for outcome in outcomes.values()}) == 24
    assert len({tuple(outcome.codes.flatten().tolist()) for outcome in outcomes.values()}) == 24
    assert sum(len(outcome.codes) >= FRAMES // 2 for outcome in outcomes.values()) >= 18
    assert np.mean([outcome.samples.std() for outcome in outcomes.values()]) > 0.02


# -- parity


@pytest.mark.deadline(120)
@pytest.mark.slow
def test_alone_each_request_is_transformers(line: Line, outcomes: dict[str, Outcome]) -> None:
    for case in CASES:
        (answer,) = line.run([case.ask()])
        check(case, answer, outcomes[case.name])
    assert line.idle()


@pytest.mark.deadline(120)
@pytest.mark.slow
@pytest.mark.parametrize("order", [1, -1])
def test_eight_at_a_time_each_is_transformers(line: Line, outcomes: dict[str, Outcome], order: int) -> None:
    """Whoever shares its steps, windows and cache; also with pieces of sound of other sizes."""
    cases = CASES[::order]
    answers = line.run([case.ask(initial_chunk_frames=1 + i % 5) for i, case in enumerate(cases)], concurrency=8)
    for case, answer in zip(cases, answers, strict=True):
        check(case, answer, outcomes[case.name])
    assert line.idle()


def test_text_alone_never_meets_the_talker(line: Line, outcomes: dict[str, Outcome]) -> None:
    case = CASES[0]
    (answer,) = line.run([replace(case.ask(), speech=None)])
    assert answer.tokens == outcomes[case.name].tokens
    assert answer.usage.keys() == {"thinker"}


@pytest.mark.parametrize("shown", [[image(70, 100)], [audio(1.5), image(90, 60, 1)], [image(64, 90), image(64, 90, 1)]])
def test_what_the_system_shows_is_thought_of_and_not_spoken_of(whole: Whole, line: Line, shown: list[Given]) -> None:
    """The talker hears users alone. Two images are equally large here: transformers takes the first one's grid for the
    user's image, whosever it is."""
    parts: list[dict[str, Any]] = [{"type": it.modality, "index": index} for index, it in enumerate(shown)]
    question = {"type": "text", "text": "What is this?"}
    messages = [
        {"role": "system", "content": [{"type": "text", "text": "Know this:"}, parts[0]]},
        {"role": "user", "content": [*parts[1:], question]},
    ]
    case = Case("system", messages, shown, "ethan")
    (answer,) = line.run([case.ask()])
    check(case, answer, whole.run(messages, shown, "ethan", TOKENS, FRAMES))


# -- planted faults: each must be seen where it is planted


@contextmanager
def changed_payloads(line: Line, stage: str, change: Callable[[Payload], None]) -> Iterator[None]:
    """Every payload of the stage is changed before it is handed on."""
    emit = line.emit

    def faulty(key: int, source: str, payload: Payload) -> None:
        if source == stage:
            payload = Payload(payload.kind, payload.meta, {n: t.copy() for n, t in payload.tensors.items()})
            change(payload)
        emit(key, source, payload)

    line.emit = faulty  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        del line.emit  # type: ignore[method-assign]


def by_name(name: str) -> Case:
    return next(case for case in CASES if case.name == name)


def fault(line: Line, name: str, outcomes: dict[str, Outcome]) -> dict[str, float]:
    """Which respects are off, and by how much, when this case runs on a faulty line."""
    (answer,) = line.run([by_name(name).ask()])
    found = differences(answer, outcomes[name])
    return {what: value for what, value in found.items() if value > 30 * TOLERANCES.get(what, 0)}


@pytest.fixture
def fragile(line: Line, monkeypatch: pytest.MonkeyPatch) -> Iterator[Line]:
    """The line, which ``monkeypatch`` may break: what was computed before does not hide it, nor is it used later."""
    encoder = line.adapter("encoder")
    monkeypatch.setattr(encoder, "cache", ByteCache(0))
    for after in (False, True):
        for stage in ("thinker", "talker"):
            engine: Any = line.engines[stage]
            engine.attach(engine._adapter)
        if not after:
            yield line


def test_a_dropped_image_is_seen(fragile: Line, outcomes: dict[str, Outcome]) -> None:
    def blank(payload: Payload) -> None:
        payload.tensors["features"][:] = 0

    with changed_payloads(fragile, "encoder", blank):
        assert {"logits", "states"} <= fault(fragile, "image", outcomes).keys()


def test_lost_deep_features_are_seen(fragile: Line, outcomes: dict[str, Outcome]) -> None:
    def blank(payload: Payload) -> None:
        payload.tensors["deepstack"][-1] = 0

    with changed_payloads(fragile, "encoder", blank):
        assert "logits" in fault(fragile, "image", outcomes)


@pytest.mark.parametrize(("name", "axis"), [("image", 1), ("image", 2), ("video", 0), ("text", 0)])
def test_a_shifted_position_is_seen(
    fragile: Line, monkeypatch: pytest.MonkeyPatch, outcomes: dict[str, Outcome], name: str, axis: int
) -> None:
    adapter = fragile.adapter("thinker")
    expand = adapter.expand

    def shifted(*args: Any) -> Any:
        made = expand(*args)
        made.positions[axis, len(made.tokens) // 2 :] += 1
        return made

    monkeypatch.setattr(adapter, "expand", shifted)
    # A prompt of text alone has the positions that the engine counts: nothing is shifted, and nothing must be seen.
    assert ("logits" in fault(fragile, name, outcomes)) == (name != "text")


def test_the_state_of_a_wrong_layer_is_seen(
    fragile: Line, monkeypatch: pytest.MonkeyPatch, outcomes: dict[str, Outcome]
) -> None:
    decoder = fragile.adapter("thinker").decoder
    monkeypatch.setattr(decoder, "_capture", decoder._capture + 1)
    seen = fault(fragile, "audio", outcomes)
    assert {"states", "talker logits"} <= seen.keys()
    assert "logits" not in seen


def test_swapped_groups_of_codes_are_seen(fragile: Line, outcomes: dict[str, Outcome]) -> None:
    def swap(payload: Payload) -> None:
        codes = payload.tensors["codes"]
        codes[:, [3, 4]] = codes[:, [4, 3]]

    with changed_payloads(fragile, "talker", swap):
        assert fault(fragile, "text", outcomes).keys() == {"codes", "samples"}


def test_another_voice_is_heard(fragile: Line, monkeypatch: pytest.MonkeyPatch, outcomes: dict[str, Outcome]) -> None:
    speakers = fragile.adapter("talker")._speakers
    monkeypatch.setitem(speakers, "ethan", speakers["aiden"])
    seen = fault(fragile, "text", outcomes)
    assert {"talker logits", "samples"} <= seen.keys()
    assert not {"tokens", "logits", "states"} & seen.keys()


def test_a_frame_too_few_is_seen(fragile: Line, outcomes: dict[str, Outcome]) -> None:
    def cut(payload: Payload) -> None:
        payload.tensors = {"codes": payload.tensors["codes"][1:]}

    with changed_payloads(fragile, "talker", cut):
        assert "samples" in fault(fragile, "text", outcomes)
