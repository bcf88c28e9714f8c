"""The tones of each key, and the refusal of texts that are no keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from omni_tones.keys import CODES, COLUMNS, ROWS
from omni_tones.pipeline import PIPELINE, SAMPLE_RATE

from omni_actors.author import OmniError, Speech
from omni_actors.testing import Sample, StageBench

pytestmark = pytest.mark.deadline(60)


@pytest.fixture(scope="module")
def bench() -> Iterator[StageBench]:
    with StageBench("omni_tones.pipeline:PIPELINE") as made:
        yield made


def heard(bench: StageBench, text: str, **parameters: Any) -> np.ndarray[Any, Any]:
    sample = Sample({"speech": Speech(text=text), "parameters": parameters}, task="speech", outputs=("audio",))
    return np.frombuffer(bench.whole(sample)["player"].sound, "<i2") / 32767


def key_of(samples: np.ndarray[Any, Any]) -> str:
    """Return the key whose tones are the loudest, by the filters of a telephone exchange (Goertzel)."""

    def power(hz: int) -> float:
        angle = -2j * np.pi * hz * np.arange(len(samples)) / SAMPLE_RATE
        return float(abs((samples * np.exp(angle)).sum()))

    row, column = (max(range(4), key=lambda i: power(tones[i])) for tones in (ROWS, COLUMNS))
    return next(key for key, code in CODES.items() if code == (row, column))


def test_every_key_is_heard_as_what_it_is(bench: StageBench) -> None:
    text = "".join(CODES)
    samples = heard(bench, text, tone_ms=80, gap_ms=20).reshape(len(text), -1)
    assert "".join(map(key_of, samples)) == text
    assert samples.shape[1] == SAMPLE_RATE // 10
    assert not samples[:, SAMPLE_RATE * 80 // 1000 :].any(), "the gap is silent"


def test_parameters_have_defaults_and_bounds(bench: StageBench) -> None:
    assert len(heard(bench, "12")) == 2 * SAMPLE_RATE * 150 // 1000
    assert abs(heard(bench, "5", level=0.25)).max() <= 0.5
    with pytest.raises(OmniError) as refused:
        heard(bench, "1", tone_ms=5)
    assert refused.value.info.param == "parameters.tone_ms"


@pytest.mark.parametrize(
    ("text", "words"), [("12x", "'X' is not a key"), (" ", "has 0 keys"), ("1" * 300, "has 300 keys")]
)
def test_what_is_no_number_is_refused(bench: StageBench, text: str, words: str) -> None:
    outcome = bench.whole(Sample({"speech": Speech(text=text)}, task="speech", outputs=("audio",)))["dialler"]
    assert outcome.error is not None
    assert (outcome.error.status, outcome.error.param) == (400, "input")
    assert words in outcome.error.message


def test_its_declaration_names_what_there_is() -> None:
    assert [stage.name for stage in PIPELINE.stages] == ["dialler", "player"]
