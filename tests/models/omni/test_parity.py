"""An omni family's stages together are transformers' model: token by token, state by state, code by code, sample by
sample."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.models.omni.cases import FRAMES
from tests.models.omni.comparison import FAMILIES, TIE, Comparison, changed_payloads
from tests.models.omni.line import Line

from omni_actors.connectors.payload import Payload


@pytest.fixture(params=list(FAMILIES))
def both(request: pytest.FixtureRequest, compared: Callable[[str], Comparison]) -> Comparison:
    return compared(request.param)


@pytest.fixture
def fragile(both: Comparison, monkeypatch: pytest.MonkeyPatch) -> Iterator[Line]:
    with both.fragile(monkeypatch) as line:
        yield line


# -- the reference itself


def ties(logits: torch.Tensor) -> int:
    best = logits.topk(2).values
    return int((best[:, 0] - best[:, 1] < TIE).sum())


@pytest.mark.deadline(240)
@pytest.mark.slow
def test_the_reference_is_worth_comparing_with(both: Comparison) -> None:
    """No ties that rounding decides; answers that neither repeat themselves nor one another; audible speech."""
    outcomes = [both.outcome(case) for case in both.cases]
    assert len(outcomes) == 24
    for outcome in outcomes:
        assert ties(outcome.logits) == ties(outcome.talker_logits) == 0
        assert len(set(outcome.tokens)) > len(outcome.tokens) // 2
        assert len(outcome.codes) == 1 or len({tuple(frame) for frame in outcome.codes.tolist()}) > 1
    assert sum(outcome.tied_frame(TIE) is not None for outcome in outcomes) <= 2
    assert len({tuple(outcome.tokens) for outcome in outcomes}) == 24
    assert len({tuple(outcome.codes.flatten().tolist()) for outcome in outcomes}) == 24
    assert sum(len(outcome.codes) >= FRAMES // 2 for outcome in outcomes) >= 18
    assert np.mean([outcome.samples.std() for outcome in outcomes]) > 0.02


# -- parity


@pytest.mark.deadline(240)
@pytest.mark.slow
def test_alone_each_request_is_transformers(both: Comparison) -> None:
    for case in both.cases:
        (answer,) = both.line.run([case.ask()])
        both.check(case, answer)
    assert both.line.idle()


@pytest.mark.deadline(240)
@pytest.mark.slow
@pytest.mark.parametrize("order", [1, -1])
def test_eight_at_a_time_each_is_transformers(both: Comparison, order: int) -> None:
    """Whoever shares its steps, windows and cache; also with pieces of sound of other sizes."""
    cases = both.cases[::order]
    answers = both.line.run([case.ask(initial_chunk_frames=1 + i % 5) for i, case in enumerate(cases)], concurrency=8)
    for case, answer in zip(cases, answers, strict=True):
        both.check(case, answer)
    assert both.line.idle()


def test_a_request_of_text_and_one_of_an_image_are_transformers(both: Comparison) -> None:
    """What the slow tests show of 24."""
    cases = [both.case("text"), both.case("image")]
    for case, answer in zip(cases, both.line.run([case.ask() for case in cases], concurrency=2), strict=True):
        both.check(case, answer)


def test_text_alone_never_meets_the_talker(both: Comparison) -> None:
    case = both.case("text")
    (answer,) = both.line.run([replace(case.ask(), speech=None)])
    assert answer.tokens == both.outcome(case).tokens
    assert answer.usage.keys() == {"thinker"}


# -- planted faults: each must be seen where it is planted


def test_a_dropped_image_is_seen(both: Comparison, fragile: Line) -> None:
    def blank(payload: Payload) -> None:
        payload.tensors["features"][:] = 0

    with changed_payloads(fragile, "encoder", blank):
        assert {"logits", "states"} <= both.fault("image").keys()


@pytest.mark.parametrize(("name", "axis"), [("image", 1), ("image", 2), ("video", 0), ("text", 0)])
def test_a_shifted_position_is_seen(
    both: Comparison, fragile: Line, monkeypatch: pytest.MonkeyPatch, name: str, axis: int
) -> None:
    adapter = fragile.adapter("thinker")
    expand = adapter.expand

    def shifted(*args: Any) -> Any:
        made = expand(*args)
        made.positions[axis, len(made.tokens) // 2 :] += 1
        return made

    monkeypatch.setattr(adapter, "expand", shifted)
    # A prompt of text alone has the positions that the engine counts: nothing is shifted, and nothing must be seen.
    assert ("logits" in both.fault(name)) == (name != "text")


@pytest.mark.parametrize("stage", ["thinker", "talker"])
def test_swapped_layers_are_seen(both: Comparison, fragile: Line, monkeypatch: pytest.MonkeyPatch, stage: str) -> None:
    layers = fragile.adapter(stage).decoder._layers
    first, one, two, *others = layers._layers
    monkeypatch.setattr(layers, "_layers", [first, two, one, *others])
    seen = both.fault("audio").keys()
    assert {"codes", "talker logits"} <= seen
    assert ("logits" in seen) == (stage == "thinker")


def test_a_changed_code_is_heard(both: Comparison, fragile: Line) -> None:
    def change(payload: Payload) -> None:
        payload.tensors["codes"][0, -1] ^= 1

    with changed_payloads(fragile, "talker", change):
        assert both.fault("text").keys() == {"codes", "samples"}


def test_a_frame_too_few_is_seen(both: Comparison, fragile: Line) -> None:
    def cut(payload: Payload) -> None:
        payload.tensors = {"codes": payload.tensors["codes"][1:]}

    with changed_payloads(fragile, "talker", cut):
        assert "samples" in both.fault("text")
