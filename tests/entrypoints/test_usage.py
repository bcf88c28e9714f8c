"""The usage of streams: a last chunk with it, and for load generators the usage so far on each."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from tests.entrypoints.fakes import SPEECH, WORDS, answer, served
from tests.entrypoints.test_chat import CHAT, events_of
from tests.entrypoints.test_middleware import error_of
from tests.media.harness import wav

from omni_actors.entrypoints.openai.tally import Tally
from omni_actors.protocol.params import Transcription
from omni_actors.protocol.request import Completed, MediaChunk, Request, TextDelta, Usage

COMPLETIONS = "/v1/completions"
HEAR = "/v1/audio/transcriptions"

EACH = {"include_usage": True, "continuous_usage_stats": True}
HI = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
LOAD = {
    "vllm bench, chat": (
        CHAT,
        {"messages": HI, "max_completion_tokens": 64, "temperature": 0.0},
    ),
    "guidellm, chat": (
        CHAT,
        {
            "messages": HI,
            "max_completion_tokens": 64,
            "ignore_eos": True,
            "stop": None,
        },
    ),
    "vllm bench, completions": (
        COMPLETIONS,
        {"prompt": "hi", "max_tokens": 64, "temperature": 0.0, "repetition_penalty": 1.0, "logprobs": None},
    ),
    "guidellm, completions": (COMPLETIONS, {"prompt": "hi", "max_tokens": 64, "ignore_eos": True, "stop": None}),
}
"""What load generators send."""


def counts(chunks: list[Any]) -> list[tuple[int, int, int]]:
    return [
        (it["usage"]["prompt_tokens"], it["usage"]["completion_tokens"], it["usage"]["total_tokens"]) for it in chunks
    ]


@pytest.mark.parametrize("name", LOAD)
async def test_a_load_generator_has_the_usage_so_far_on_each_chunk(name: str) -> None:
    path, body = LOAD[name]
    async with served() as server:
        response = await server.post(path, {"model": "assistant", **body, "stream": True, "stream_options": EACH})
        *chunks, last, done = events_of(response.text)
        assert done == "[DONE]"
        begun = [(11, 0, 11)] if path == CHAT else []  # the chunk with the role
        assert counts(chunks) == begun + [(11, count, 11 + count) for count in range(1, len(WORDS) + 1)]
        assert last["choices"] == []
        assert last["usage"] == chunks[-1]["usage"]
        assert last["usage"]["prompt_tokens_details"]["cached_tokens"] == 3


@pytest.mark.parametrize(
    ("options", "each", "last"),
    [
        ({"continuous_usage_stats": True}, True, True),
        ({"continuous_usage_stats": True, "include_usage": None}, True, True),
        ({"continuous_usage_stats": True, "include_usage": False}, True, False),
        ({"continuous_usage_stats": False, "include_usage": True}, False, True),
        ({"continuous_usage_stats": None, "include_obfuscation": False}, False, False),
    ],
)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_which_chunks_have_it(path: str, options: dict[str, Any], each: bool, last: bool) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}]} if path == CHAT else {"prompt": "hi"}
    async with served() as server:
        events = events_of((await server.post(path, {**body, "stream": True, "stream_options": options})).text)
        chunks = [it for it in events[:-1] if it["choices"]]
        assert all(bool(it.get("usage")) == each for it in chunks)
        assert (len(chunks) == len(events) - 2) == last
        refused = error_of(await server.post(path, {**body, "stream_options": options}), 400)
        assert refused["param"] == "stream_options"


async def test_each_choice_has_its_own_count() -> None:
    """Of several prompts too; the last chunk has the sum."""
    body = {"n": 2, "stream": True, "stream_options": EACH, "logprobs": 1}
    async with served() as server:
        *chunks, last, _ = events_of((await server.post(COMPLETIONS, {**body, "prompt": ["a", "b"]})).text)
        for index in range(4):
            mine = [it for it in chunks if it["choices"][0]["index"] == index]
            assert counts(mine) == [(11, count, 11 + count) for count in range(1, len(WORDS) + 1)]
        assert counts([last]) == [(22, 4 * len(WORDS), 22 + 4 * len(WORDS))]
        chat = {**body, "messages": [{"role": "user", "content": "a"}], "logprobs": True}
        *chunks, last, _ = events_of((await server.post(CHAT, chat)).text)
        assert counts([it for it in chunks if it["choices"][0]["finish_reason"]]) == [(11, 7, 18)] * 2
        assert counts([last]) == [(11, 14, 25)]


async def test_tokens_whose_text_is_held_back_count_with_the_next_chunk() -> None:
    used = Usage(prompt_tokens=5, completion_tokens=3)

    def held(request: Request) -> list[Any]:
        deltas = [TextDelta(0, 0, "a", [1], usage=Usage(prompt_tokens=5)), TextDelta(0, 0, "", [2])]
        return [*deltas, TextDelta(0, 0, "b", [3], "length"), Completed({"llm": used})]

    async with served(held) as server:
        body = {"messages": [{"role": "user", "content": "a"}], "stream": True, "stream_options": EACH}
        *chunks, last, _ = events_of((await server.post(CHAT, body)).text)
        assert counts([*chunks, last]) == [(5, 0, 5), (5, 1, 6), (5, 3, 8), (5, 3, 8)]


async def test_a_spoken_stream_counts_the_text_so_far_and_in_the_end_all() -> None:
    def spoken(request: Request) -> list[Any]:
        *steps, _ = answer(request)
        assert any(isinstance(it, MediaChunk) for it in steps)
        return [*steps, Completed({"llm": Usage(prompt_tokens=11, cached_tokens=3, completion_tokens=7)})]

    body = {"messages": [{"role": "user", "content": "a"}], "modalities": ["text", "audio"], "stream": True}
    async with served(spoken) as server:
        *chunks, last, _ = events_of((await server.post(CHAT, {**body, "stream_options": EACH})).text)
        found = counts(chunks)
        assert found == sorted(found)
        assert (found[0], found[-1]) == ((11, 0, 11), (11, 7, 18))
        assert last["usage"] == chunks[-1]["usage"]


async def test_a_transcription_has_vllms_twins_of_these_fields() -> None:
    def said(request: Request) -> list[Any]:
        counted = [Usage(prompt_tokens=4, completion_tokens=count) for count in (2, 5)]
        deltas = [TextDelta(0, 0, text, [], usage=usage) for text, usage in zip("ab", counted, strict=True)]
        return [*deltas, Completed({"asr": Usage(prompt_tokens=4, completion_tokens=6)})]

    form = {"model": "assistant", "stream": "true", "stream_include_usage": "True"}
    file = {"file": ("a.wav", wav(SPEECH))}
    each = {"stream_continuous_usage_stats": "True"}
    async with served(said) as server:
        *deltas, done = events_of((await server.client.post(HEAR, data=form | each, files=file)).text)
        assert [(it["usage"]["input_tokens"], it["usage"]["output_tokens"]) for it in deltas] == [(4, 2), (4, 5)]
        assert done["usage"] == {"type": "tokens", "input_tokens": 4, "output_tokens": 6, "total_tokens": 10}
        *deltas, last = events_of((await server.client.post(HEAR, data=form, files=file)).text)
        assert not any("usage" in it for it in deltas)
        assert last == done
        whole = await server.client.post(HEAR, data={"model": "assistant", **each}, files=file)
        assert error_of(whole, 400)["param"] == "stream_continuous_usage_stats"
        off = {"stream_include_usage": "False", "stream_continuous_usage_stats": "False"}
        assert (await server.client.post(HEAR, data=off, files=file)).json()["text"] == "ab"


VLLM_BENCH = {
    "model": "assistant",
    "temperature": "0.0",
    "max_completion_tokens": "128",
    "stream": "True",
    "language": "en",
    "stream_include_usage": "True",
    "stream_continuous_usage_stats": "True",
}
"""The whole form of ``vllm bench serve --backend openai-audio``."""


async def test_a_load_generators_whole_form_is_served_and_its_bound_asked_for() -> None:
    file = {"file": ("a.wav", wav(SPEECH))}
    async with served() as server:
        response = await server.client.post(HEAR, data=VLLM_BENCH, files=file)
        assert response.status_code == 200, response.text
        *deltas, done = events_of(response.text)
        assert all(it["usage"] for it in deltas)
        assert done["usage"]["output_tokens"] == 9
        assert server.orchestrator.requests[0].params["transcription"] == Transcription(language="en", max_tokens=128)


@pytest.mark.parametrize("path", [HEAR, "/v1/audio/translations"])
async def test_a_transcripts_bound_in_forms_and_in_json(path: str) -> None:
    file = {"file": ("a.wav", wav(SPEECH))}
    audio = {"data": base64.b64encode(wav(SPEECH)).decode(), "format": "wav"}
    async with served() as server:
        for value, asked in (("3", 3), ("", None)):
            form = await server.client.post(path, data={"max_completion_tokens": value}, files=file)
            json = await server.post(path, {"input_audio": audio, "max_completion_tokens": asked})
            assert (form.status_code, json.status_code) == (200, 200), (form.text, json.text)
            for request in server.orchestrator.requests[-2:]:
                assert request.params["transcription"].max_tokens == asked
        count = len(server.orchestrator.requests)
        for bad in ("0", "-1", "1.5", "many", str(2**60)):
            form = await server.client.post(path, data={"max_completion_tokens": bad}, files=file)
            assert error_of(form, 400)["param"] == "max_completion_tokens"
        for wrong in (0, -1, 1.5, True, "3", 2**60):
            json = await server.post(path, {"input_audio": audio, "max_completion_tokens": wrong})
            assert error_of(json, 400)["param"] == "max_completion_tokens"
        unknown = await server.client.post(path, data={"max_tokens": "3"}, files=file)
        assert error_of(unknown, 400)["param"] == "max_tokens"
        assert len(server.orchestrator.requests) == count


def test_an_attempt_that_goes_on_counts_no_token_twice() -> None:
    tally = Tally()
    for delta in (
        TextDelta(1, 0, "a", [1, 2], usage=Usage(prompt_tokens=9)),
        TextDelta(2, 0, "b", [3], usage=Usage(prompt_tokens=9, cached_tokens=8)),
        TextDelta(2, 1, "c", [4]),
    ):
        tally.take(delta)
    assert tally.of(0) == Usage(prompt_tokens=9, cached_tokens=8, completion_tokens=3)
    assert tally.of(1) == Usage(prompt_tokens=9, cached_tokens=8, completion_tokens=1)
