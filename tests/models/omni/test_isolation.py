"""One bad request of eight in an omni model, wherever it goes bad: seven have the text, codes and sound that they have
alone, and the error names the stage."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.models.omni.line import Answer, Ask, Line

from omni_actors.connectors.payload import Payload
from omni_actors.models.common.depth import Draw
from omni_actors.models.qwen3_omni.pipeline import PIPELINE
from omni_actors.protocol.params import Prompt, Speech
from omni_actors.worker.engines.autoregressive.adapter import Release
from omni_actors.worker.engines.autoregressive.decoder import StepInputs, StepOutput

BATCH, BAD = 8, 5

ROOMY = {"kv_memory_mib": 16, "prefix_cache": False}


def ask(number: int) -> Ask:
    text = f"Question {number}: " + "what is it? " * (number % 3)
    speech = Speech(seed=number, max_tokens=12)
    return Ask(Prompt(messages=[{"role": "user", "content": text}]), (), 8, speech, {"ignore_eos": True})


@pytest.fixture(scope="module")
def line(tiny_model: Callable[[str], Path]) -> Line:
    return Line(PIPELINE, tiny_model("qwen3-omni"), {"thinker": ROOMY, "talker": ROOMY})


@pytest.fixture(scope="module")
def alone(line: Line) -> list[Answer]:
    answers = [line.run([ask(number)])[0] for number in range(BATCH)]
    assert not any(answer.error for answer in answers)
    return answers


@contextmanager
def wrapped(owner: Any, name: str, wrap: Callable[[Any], Any]) -> Iterator[None]:
    original = getattr(owner, name)
    setattr(owner, name, wrap(original))
    try:
        yield
    finally:
        setattr(owner, name, original)


def states_are_nan(line: Line, key: int) -> Any:
    """The thinker's states of one request."""

    def wrap(output: Callable[[Release], Payload | None]) -> Any:
        def bad(release: Release) -> Payload | None:
            if release.key == key and release.states is not None:
                release = replace(release, states=torch.full_like(release.states, torch.nan))
            return output(release)

        return bad

    return wrapped(line.adapter("thinker"), "output", wrap)


def forward_raises(stage: str) -> Callable[[Line, int], Any]:
    def plant(line: Line, key: int) -> Any:
        def wrap(forward: Callable[..., StepOutput]) -> Any:
            def bad(inputs: StepInputs, attention: Any) -> StepOutput:
                output = forward(inputs, attention)
                if any(span.key == key and span.count == 1 for span in inputs.spans):
                    raise ValueError("secret detail")
                return output

            return bad

        return wrapped(line.adapter(stage).decoder, "forward", wrap)

    return plant


def hidden_is_nan(line: Line, key: int) -> Any:
    """What the talker's code predictor gets of one request, from the third frame on."""

    def wrap(depth: Callable[..., Any]) -> Any:
        def bad(hidden: torch.Tensor, first: torch.Tensor, draws: Sequence[Draw]) -> Any:
            mine = torch.tensor([draw.seed == BAD and draw.position > 2 for draw in draws])
            return depth(hidden.masked_fill(mine[:, None], torch.nan), first, draws)

        return bad

    return wrapped(line.adapter("talker"), "depth", wrap)


def codes_are_off(line: Line, key: int) -> Any:
    """What the talker sends of one request is beyond the codebook."""

    def wrap(output: Callable[[Release], Payload | None]) -> Any:
        def bad(release: Release) -> Payload | None:
            payload = output(release)
            if release.key == key and payload is not None:
                payload.tensors["codes"][:] = 1 << 20
            return payload

        return bad

    return wrapped(line.adapter("talker"), "output", wrap)


FAULTS: dict[str, tuple[Callable[[Line, int], Any], str, str]] = {
    "the thinker raises": (forward_raises("thinker"), "thinker", "failed on this request"),
    "the thinker's states are NaN": (states_are_nan, "thinker", "tensor 'states' of payload 'hidden' is not finite"),
    "the talker raises": (forward_raises("talker"), "talker", "failed on this request"),
    "the talker's hidden state is NaN": (hidden_is_nan, "talker", "the code predictor's states are not finite"),
    "the talker's codes are off": (codes_are_off, "talker", "a number that is not below"),
}


@pytest.mark.deadline(60)
@pytest.mark.parametrize("fault", FAULTS)
def test_seven_are_as_alone(line: Line, alone: list[Answer], fault: str) -> None:
    plant, stage, words = FAULTS[fault]
    with plant(line, line.next_key + BAD):
        found = line.run([ask(number) for number in range(BATCH)], BATCH)
    error = found[BAD].error
    assert error is not None
    assert (error.stage, error.code, error.status) == (stage, "stage_failed", 500)
    assert words in error.message
    assert "secret" not in error.message
    for number in set(range(BATCH)) - {BAD}:
        answer, expected = found[number], alone[number]
        assert answer.error is None
        assert answer.tokens == expected.tokens
        assert (answer.joined("talker", "codes") == expected.joined("talker", "codes")).all()
        np.testing.assert_allclose(
            answer.joined("code2wav", "samples"), expected.joined("code2wav", "samples"), rtol=0, atol=1e-4
        )
    assert line.idle()
    talker, thinker = line.adapter("talker"), line.adapter("thinker")
    assert not any((talker.requests, talker.decoder.features, talker._heard, thinker._requests))
