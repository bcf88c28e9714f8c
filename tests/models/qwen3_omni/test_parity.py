"""What is Qwen3-Omni's alone among what makes it transformers' model: deep features, inner layers, groups of codes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.models.omni.cases import FRAMES, TOKENS, Case
from tests.models.omni.comparison import Comparison, changed_payloads
from tests.models.omni.line import Line
from tests.models.omni.media import Given, audio, image

from omni_actors.connectors.payload import Payload


@pytest.fixture
def both(compared: Callable[[str], Comparison]) -> Comparison:
    return compared("qwen3-omni")


@pytest.fixture
def fragile(both: Comparison, monkeypatch: pytest.MonkeyPatch) -> Iterator[Line]:
    with both.fragile(monkeypatch) as line:
        yield line


@pytest.mark.parametrize("shown", [[image(70, 100)], [audio(1.5), image(90, 60, 1)], [image(64, 90), image(64, 90, 1)]])
def test_what_the_system_shows_is_thought_of_and_not_spoken_of(both: Comparison, shown: list[Given]) -> None:
    """The talker hears users alone. Two images are equally large here: transformers takes the first one's grid for the
    user's image, whosever it is."""
    parts: list[dict[str, Any]] = [{"type": it.modality, "index": index} for index, it in enumerate(shown)]
    question = {"type": "text", "text": "What is this?"}
    messages = [
        {"role": "system", "content": [{"type": "text", "text": "Know this:"}, parts[0]]},
        {"role": "user", "content": [*parts[1:], question]},
    ]
    case = Case("system", messages, shown, "ethan")
    (answer,) = both.line.run([case.ask()])
    both.check(case, answer, both.whole.run(messages, shown, "ethan", TOKENS, FRAMES))


def test_lost_deep_features_are_seen(both: Comparison, fragile: Line) -> None:
    def blank(payload: Payload) -> None:
        payload.tensors["deepstack"][-1] = 0

    with changed_payloads(fragile, "encoder", blank):
        assert "logits" in both.fault("image")


def test_the_state_of_a_wrong_layer_is_seen(both: Comparison, fragile: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = fragile.adapter("thinker").decoder
    monkeypatch.setattr(decoder, "_capture", decoder._capture + 1)
    seen = both.fault("audio")
    assert {"states", "talker logits"} <= seen.keys()
    assert "logits" not in seen


def test_swapped_groups_of_codes_are_seen(both: Comparison, fragile: Line) -> None:
    def swap(payload: Payload) -> None:
        codes = payload.tensors["codes"]
        codes[:, [3, 4]] = codes[:, [4, 3]]

    with changed_payloads(fragile, "talker", swap):
        assert both.fault("text").keys() == {"codes", "samples"}


def test_another_voice_is_heard(both: Comparison, fragile: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    speakers = fragile.adapter("talker")._speakers
    monkeypatch.setitem(speakers, "ethan", speakers["aiden"])
    seen = both.fault("text")
    assert {"talker logits", "samples"} <= seen.keys()
    assert not {"tokens", "logits", "states"} & seen.keys()
