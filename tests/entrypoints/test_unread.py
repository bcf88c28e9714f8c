"""What no stage of a request reads is refused by name, and what nobody asked for is no mistake."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import Any

import pytest
from tests.entrypoints.fakes import PIPELINE, SPEECH, served
from tests.entrypoints.test_middleware import error_of
from tests.media.harness import wav

from omni_actors.pipelines.declaration import Pipeline
from omni_actors.protocol.params import Transcription

CHAT, COMPLETIONS, SAY, HEAR = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/audio/speech",
    "/v1/audio/transcriptions",
)
AUDIO = {"data": base64.b64encode(wav(SPEECH)).decode(), "format": "wav"}
HEARD = {"type": "input_audio", "input_audio": AUDIO}
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "hi"}]},
    COMPLETIONS: {"prompt": "hi"},
    SAY: {"input": "hi"},
    HEAR: {"input_audio": AUDIO},
}


def reading(**sections: tuple[str, ...]) -> Pipeline:
    """The assistant, with stages that read only these."""
    stages = (replace(stage, sections=sections.get(stage.name, stage.sections)) for stage in PIPELINE.stages)
    return replace(PIPELINE, stages=tuple(stages))


UNSAMPLED = reading(llm=("prompt",))
DEAF = reading(asr=(), llm=(), acoustic=())

SAMPLED: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": 5}, "max_tokens"),
    ({"temperature": 0}, "temperature"),
    ({"top_p": 0.5}, "top_p"),
    ({"stop": ["."]}, "stop"),
    ({"n": 2}, "n"),
    ({"seed": 0}, "seed"),
    ({"logit_bias": {"5": 1}}, "logit_bias"),
    ({"presence_penalty": 1}, "presence_penalty"),
    ({"min_tokens": 1}, "min_tokens"),
    ({"ignore_eos": True}, "ignore_eos"),
    ({"skip_special_tokens": False}, "skip_special_tokens"),
]
OWN: dict[str, list[tuple[dict[str, Any], str]]] = {
    CHAT: [
        ({"max_completion_tokens": 5}, "max_completion_tokens"),
        ({"logprobs": True}, "logprobs"),
        ({"logprobs": True, "top_logprobs": 2}, "logprobs"),
    ],
    COMPLETIONS: [({"logprobs": 0}, "logprobs"), ({"echo": True}, "echo")],
}


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_sampling_where_nothing_is_sampled_is_refused_by_name(path: str) -> None:
    async with served(pipeline=UNSAMPLED) as server:
        for change, param in [*SAMPLED, *OWN[path]]:
            info = error_of(await server.post(path, {**BODIES[path], **change}), 400)
            assert (info["param"], info["code"]) == (param, "unsupported_parameter"), change
        assert not server.orchestrator.requests


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(
    "neutral",
    [{}, {"n": 1, "stop": [], "seed": None, "presence_penalty": 0, "logit_bias": {}, "min_tokens": 0, "top_k": None}],
)
async def test_what_asks_for_nothing_is_no_mistake(path: str, neutral: dict[str, Any]) -> None:
    """The defaults of a route are nobody's wish, such as the 16 tokens of a completion."""
    async with served(pipeline=UNSAMPLED) as server:
        response = await server.post(path, {**BODIES[path], **neutral})
        assert response.status_code == 200, response.text
        assert list(server.orchestrator.requests[0].params) == ["prompt"]


@pytest.mark.parametrize(
    ("path", "change", "param"),
    [
        (CHAT, {}, "messages"),
        (COMPLETIONS, {}, "prompt"),
        (COMPLETIONS, {"prompt": [1, 2]}, "prompt"),
        (SAY, {}, "input"),
        (HEAR, {"language": "en"}, "language"),
        (HEAR, {"prompt": "words"}, "prompt"),
        (HEAR, {"temperature": 0.5}, "temperature"),
        (HEAR, {"response_format": "srt"}, "response_format"),
        (HEAR, {"response_format": "verbose_json", "timestamp_granularities": ["word"]}, "timestamp_granularities"),
    ],
)
async def test_every_section_counts(path: str, change: dict[str, Any], param: str) -> None:
    async with served(pipeline=DEAF) as server:
        assert error_of(await server.post(path, {**BODIES[path], **change}), 400)["param"] == param
        assert (await server.post(HEAR, BODIES[HEAR])).status_code == 200
        await server.settled()


async def test_what_a_route_adds_of_its_own_is_left_out() -> None:
    """The number of clips, for a stage that takes none; the voice that the model has."""
    two = {"messages": [{"role": "user", "content": [HEARD, HEARD]}]}
    async with served() as server:
        assert (await server.post(CHAT, two)).status_code == 200
        assert server.orchestrator.requests[0].params["transcription"] == Transcription(clips=2)
    async with served(pipeline=reading(asr=(), acoustic=("sampling",))) as server:
        assert (await server.post(CHAT, two)).status_code == 200
        assert set(server.orchestrator.requests[0].params) == {"prompt", "sampling"}
        spoken = {**BODIES[CHAT], "modalities": ["text", "audio"]}
        assert (await server.post(CHAT, spoken)).status_code == 200
        for voice in ({"voice": "bella"}, {"speaker": "bella"}, {"audio": {"voice": "bella"}}):
            assert error_of(await server.post(CHAT, {**spoken, **voice}), 400)["param"] == next(iter(voice))
        await server.settled()


async def test_what_another_section_carries_too_is_heard_there() -> None:
    """A seed is the voice's as well as the words'."""
    async with served(pipeline=UNSAMPLED) as server:
        spoken = {**BODIES[CHAT], "modalities": ["text", "audio"], "seed": 7}
        assert (await server.post(CHAT, spoken)).status_code == 200
        assert server.orchestrator.requests[0].params["speech"].seed == 7
