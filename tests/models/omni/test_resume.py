"""An omni request that goes on where an earlier attempt was says and speaks what it would have undisturbed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.models.omni.comparison import Comparison
from tests.models.omni.line import Answer, Ask, Line

from omni_actors.protocol.params import Speech

FAMILIES = ("qwen3-omni", "qwen2.5-omni")

SEEDED: dict[str, Any] = {"temperature": 1.0, "top_p": 0.9, "seed": 5}

TOLERANCE = 1e-4
"""Of samples, by full scale."""


@pytest.fixture(params=FAMILIES)
def both(request: pytest.FixtureRequest, compared: Callable[[str], Comparison]) -> Comparison:
    return compared(request.param)


def asked(both: Comparison, case: str, seeded: bool = False, **changes: Any) -> Ask:
    ask = both.case(case).ask()
    assert ask.speech is not None
    if seeded:
        speech = Speech(voice=ask.speech.voice, max_tokens=ask.speech.max_tokens, temperature=0.9, seed=9)
        ask = replace(ask, speech=speech, sampling=SEEDED)
    return replace(ask, **changes)


def undisturbed(line: Line, ask: Ask) -> Answer:
    (answer,) = line.run([ask])
    assert answer.error is None
    assert line.idle()
    return answer


def check(line: Line, ask: Ask, whole: Answer, thinker: int, talker: int, delivered: int = 0) -> Answer:
    """The request is interrupted when the thinker has made so many steps and the talker so many, and the client has so
    many samples."""
    cut = {"thinker": whole.prefix("thinker", thinker), "talker": whole.prefix("talker", talker)}
    if not talker:
        del cut["talker"]
    rest = undisturbed(line, replace(ask, prefixes=cut, delivered=delivered))
    if ask.shown:
        assert [*cut["thinker"].tokens[0], *rest.tokens] == whole.tokens
        assert whole.text.endswith(rest.text)
    assert np.array_equal(rest.joined("talker", "codes"), whole.joined("talker", "codes"))
    start = rest.payloads[line.last][0].meta.get("start", 0)
    assert start <= delivered
    left, sound = whole.joined(line.last, "samples")[start:], rest.joined(line.last, "samples")
    assert left.shape == sound.shape
    assert np.abs(left - sound).max() < TOLERANCE
    for stage, usage in whole.usage.items():
        assert rest.usage[stage].completion_tokens == usage.completion_tokens
        assert rest.usage[stage].prompt_tokens == usage.prompt_tokens
        assert abs(rest.usage[stage].audio_output_s - usage.audio_output_s) < 1e-6
    return rest


@pytest.mark.parametrize("seeded", [False, True], ids=["greedy", "seeded"])
@pytest.mark.parametrize("case", ["short text", "image, audio"])
def test_every_cut(both: Comparison, case: str, seeded: bool) -> None:
    line, ask = both.line, asked(both, case, seeded)
    whole = undisturbed(line, ask)
    thinker, talker = len(whole.ledger["thinker"]), len(whole.ledger["talker"])
    assert talker > 8
    samples = len(whole.joined(line.last, "samples"))
    for frames in range(talker + 1):
        # Anything from as little as the talker had heard of then, to all.
        check(line, ask, whole, max(1, thinker - frames), frames, samples * frames // (talker + 1))
    check(line, ask, whole, thinker, 3)
    check(line, ask, whole, 2, talker, samples)
    assert not whole.text or len(set(map(tuple, whole.joined("talker", "codes").tolist()))) > 4


def test_text_that_nobody_sees(both: Comparison) -> None:
    """The thinker reports its tokens all the same."""
    line, ask = both.line, asked(both, "text", shown=False)
    whole = undisturbed(line, ask)
    assert not whole.tokens
    assert len(whole.prefix("thinker").tokens[0]) == whole.usage["thinker"].completion_tokens
    for cut in (1, 4, len(whole.ledger["thinker"])):
        check(line, ask, whole, cut, cut)


def test_a_text_to_be_read(both: Comparison) -> None:
    line = both.line
    ask = Ask(None, speech=Speech(text="The sea is wide.", max_tokens=12, temperature=0.9, seed=4))
    whole = undisturbed(line, ask)
    for frames in (1, 5, len(whole.ledger["talker"])):
        rest = undisturbed(line, replace(ask, prefixes={"talker": whole.prefix("talker", frames)}))
        assert np.array_equal(rest.joined("talker", "codes"), whole.joined("talker", "codes"))
