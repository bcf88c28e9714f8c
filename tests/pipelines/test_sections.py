"""What a request says to nobody: the check where sections are bound to stages."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.pipelines.builders import ASSISTANT, plan_of

from omni_actors.pipelines.sections import check_sections
from omni_actors.pipelines.subgraph import Subgraph, subgraph
from omni_actors.protocol.errors import OmniError
from omni_actors.protocol.params import Prompt, Sampling, Speech, Transcription


class Own(msgspec.Struct):
    """A family's own section."""

    steps: int
    names: list[str] = []


@pytest.fixture(scope="module")
def speech() -> Subgraph:
    return subgraph(plan_of(ASSISTANT), "speech", ("text",), ("audio",))


def test_which_sections_are_read(speech: Subgraph) -> None:
    plan = plan_of(ASSISTANT)
    assert speech.sections == {"speech"}
    assert subgraph(plan, "chat", ("text",), ("text",)).sections == {"prompt", "sampling"}
    everything = subgraph(plan, "chat", ("text", "audio"), ("text", "audio"))
    assert everything.sections == {"prompt", "sampling", "speech", "transcription"}


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"speech": Speech(text="a", speed=2.0)},
        {"speech": Speech(), "sampling": Sampling(), "prompt": Prompt(), "transcription": Transcription()},
        {"own": {}, "sampling": Sampling(stop=[], n=1, logit_bias={})},
    ],
)
def test_defaults_say_nothing(speech: Subgraph, params: dict[str, Any]) -> None:
    check_sections(speech, params)


@pytest.mark.parametrize(
    ("params", "param"),
    [
        ({"sampling": Sampling(max_tokens=5)}, "max_tokens"),
        ({"sampling": Sampling(stop=["a"])}, "stop"),
        ({"sampling": Sampling(n=2)}, "n"),
        ({"speech": Speech(text="a"), "prompt": Prompt(text="a")}, "text"),
        ({"transcription": Transcription(clips=2)}, "clips"),
        ({"own": {"steps": 3}}, "params.own"),
        ({"own": Own(3)}, "steps"),
        ({"clips": [1]}, "params.clips"),
    ],
)
def test_what_nobody_reads_is_refused_by_name(speech: Subgraph, params: dict[str, Any], param: str) -> None:
    with pytest.raises(OmniError) as caught:
        check_sections(speech, params)
    info = caught.value.info
    assert (info.status, info.param, info.code) == (400, param, "unsupported_parameter")
    assert "they read: speech" in info.message
