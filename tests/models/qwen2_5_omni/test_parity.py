"""What is Qwen2.5-Omni's alone among what makes it transformers' model: the talker's marks and positions, speakers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.models.omni.comparison import Comparison
from tests.models.omni.line import Line


@pytest.fixture
def both(compared: Callable[[str], Comparison]) -> Comparison:
    return compared("qwen2.5-omni")


@pytest.fixture
def fragile(both: Comparison, monkeypatch: pytest.MonkeyPatch) -> Iterator[Line]:
    with both.fragile(monkeypatch) as line:
        yield line


def spoken_of(seen: dict[str, float]) -> bool:
    """Whether the talker says something else, of the same thoughts."""
    return "talker logits" in seen and not {"tokens", "logits", "states"} & seen.keys()


def test_states_that_lack_the_embeddings_are_seen(
    both: Comparison, fragile: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    def captured(embedded: torch.Tensor, captured: torch.Tensor, rows: Any) -> torch.Tensor:
        return captured

    monkeypatch.setattr(fragile.adapter("thinker").decoder, "side", captured)
    seen = both.fault("audio")
    assert {"states", "talker logits"} <= seen.keys()
    assert "logits" not in seen


def test_features_that_are_heard_as_embeddings_are_seen(
    both: Comparison, fragile: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    def whole(embedded: torch.Tensor, captured: torch.Tensor, rows: Any) -> torch.Tensor:
        return captured + embedded

    monkeypatch.setattr(fragile.adapter("thinker").decoder, "side", whole)
    assert "states" in both.fault("audio")
    assert not both.fault("text")


def test_the_talkers_positions_are_transformers(both: Comparison, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the whole prompt and its last two tokens, videos with their sound among it."""
    talker, adapter = both.whole.model.talker, both.line.adapter("talker")
    count, place = talker.get_rope_index, adapter.place
    theirs: list[tuple[torch.Tensor, float]] = []
    ours: list[tuple[torch.Tensor, float]] = []

    def counted(*args: Any) -> Any:
        positions, delta = count(*args)
        theirs.append((positions[:, 0], float(delta)))
        return positions, delta

    def placed(key: int, prompt: torch.Tensor, features: Any = None) -> None:
        ours.append((features.positions, features.delta))
        place(key, prompt, features)

    monkeypatch.setattr(talker, "get_rope_index", counted)
    monkeypatch.setattr(adapter, "place", placed)
    for case in (both.case(name) for name in ("image, audio", "audio, video", "two videos with sound")):
        both.whole.run(case.messages, case.given, case.voice, 2, 1)
        both.line.run([dataclasses.replace(case.ask(), max_tokens=2)])
    assert len(ours) == len(theirs) == 3
    for (positions, delta), (expected, expected_delta) in zip(ours, theirs, strict=True):
        assert torch.equal(positions, expected)
        assert delta == expected_delta


@pytest.mark.parametrize(("name", "axis"), [("image", 1), ("video with sound", 0), ("image, audio", 0)])
def test_a_position_of_the_talker_that_is_shifted_is_seen(
    both: Comparison, fragile: Line, monkeypatch: pytest.MonkeyPatch, name: str, axis: int
) -> None:
    adapter = fragile.adapter("talker")
    place = adapter.place

    def shifted(key: int, prompt: torch.Tensor, features: Any = None) -> None:
        features.positions[axis, len(prompt) // 2 :] += 1
        place(key, prompt, features)

    monkeypatch.setattr(adapter, "place", shifted)
    assert spoken_of(both.fault(name))


def test_the_talkers_own_notion_of_time_counts(
    both: Comparison, fragile: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = fragile.adapter("talker")
    monkeypatch.setattr(adapter, "_layout", dataclasses.replace(adapter._layout, positions_per_s=13))
    assert spoken_of(both.fault("video"))


def test_missing_marks_beside_the_first_words_are_seen(
    both: Comparison, fragile: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = fragile.adapter("talker")
    for mark in ("tts_codec_pad_token_id", "tts_codec_start_token_id"):
        with monkeypatch.context() as patch:
            patch.setattr(adapter._talker, mark, 3)
            assert spoken_of(both.fault("text"))


def test_another_voice_is_heard(both: Comparison, fragile: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its begin in the talker, its sound in the vocoder."""
    marks = fragile.adapter("talker")._marks
    with monkeypatch.context() as patch:
        patch.setitem(marks, "ethan", marks["chelsie"])
        assert spoken_of(both.fault("text"))
    conditions = fragile.adapter("token2wav")._conditions
    monkeypatch.setitem(conditions, "ethan", conditions["chelsie"])
    assert both.fault("text").keys() == {"samples"}
