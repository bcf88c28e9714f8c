"""Chat completions: every field honoured, a published no-op, or refused by name; failures and disconnects."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from io import BytesIO
from typing import Any

import av
import httpx
import msgspec
import pytest
import trio
from tests.entrypoints.fakes import PIPELINE, RATE, SPEECH, TEXT, TEXT_ONLY, Step, message, served
from tests.entrypoints.test_middleware import error_of, raw
from tests.media.harness import tone, wav

from omni_actors.entrypoints.openai.fields import accepted_no_ops
from omni_actors.entrypoints.openai.schemas import ChatRequest, CompletionRequest
from omni_actors.protocol.errors import overloaded, stage_died
from omni_actors.protocol.params import Sampling
from omni_actors.protocol.request import Completed, MediaChunk, Request, TextDelta, Usage

CHAT = "/v1/chat/completions"


def delta(text: str, **more: Any) -> TextDelta:
    return TextDelta(0, 0, text, [], **more)


def events_of(text: str) -> list[Any]:
    """The JSON of each event; ``[DONE]`` stays a string."""
    assert text.endswith("\n\n")
    lines = [line.removeprefix("data: ") for line in text.removesuffix("\n\n").split("\n\n")]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


async def test_sampling_fields_reach_the_stage() -> None:
    fields: dict[str, Any] = {
        "max_completion_tokens": 5,
        "min_tokens": 2,
        "temperature": 0,
        "top_p": 0.5,
        "top_k": 7,
        "min_p": 0.1,
        "presence_penalty": -1,
        "frequency_penalty": 1.5,
        "repetition_penalty": 1.1,
        "seed": -3,
        "stop": "END",
        "stop_token_ids": [4],
        "include_stop_str_in_output": True,
        "ignore_eos": True,
        "logit_bias": {"50256": -100},
        "skip_special_tokens": False,
        "n": 2,
        "logprobs": True,
        "top_logprobs": 3,
    }
    async with served() as server:
        response = await server.post(CHAT, message(chat_template_kwargs={"a": 1}, **fields))
        assert response.status_code == 200, response.text
        (request,) = server.orchestrator.requests
    made = msgspec.to_builtins(request.params["sampling"])
    expected = {**fields, "max_tokens": 5, "logprobs": 3, "stop": ["END"], "logit_bias": {50256: -100.0}}
    del expected["max_completion_tokens"], expected["top_logprobs"]
    assert made == expected
    prompt = request.params["prompt"]
    assert prompt.chat_template_kwargs == {"a": 1}
    assert prompt.messages == [{"role": "user", "content": "hi"}]


async def test_defaults_are_left_to_the_stage() -> None:
    async with served() as server:
        await server.post(CHAT, message())
        (request,) = server.orchestrator.requests
    assert request.params["sampling"] == Sampling()
    assert (request.task, request.inputs, request.outputs) == ("chat", ("text",), ("text",))
    assert set(request.params) == {"prompt", "sampling"}


async def test_published_no_ops_change_nothing() -> None:
    """The list in the code is the list: each of its fields is accepted, together and alone."""
    values: dict[str, Any] = {
        "user": "u",
        "store": True,
        "metadata": {"a": "b"},
        "service_tier": "auto",
        "parallel_tool_calls": False,
        "prediction": {"type": "content", "content": "x"},
        "prompt_cache_key": "k",
        "prompt_cache_options": {"mode": "implicit"},
        "prompt_cache_retention": "24h",
        "safety_identifier": "s",
    }
    assert set(accepted_no_ops(ChatRequest)) == set(values)
    assert set(accepted_no_ops(CompletionRequest)) == {"user"}
    assert all(why.endswith(".") for why in accepted_no_ops(ChatRequest).values())
    async with served() as server:
        assert (await server.post(CHAT, message(**values))).status_code == 200
        await server.post(CHAT, message())
        first, second = server.orchestrator.requests
    assert first.params == second.params


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"temprature": 1}, "temprature"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": 2.5}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": 2**70}, "max_tokens"),
        ({"min_tokens": 2**70}, "min_tokens"),
        ({"top_k": 2**70}, "top_k"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens"),
        ({"max_tokens": 3, "min_tokens": 4}, "min_tokens"),
        ({"n": 0}, "n"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a", ""]}, "stop[1]"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"1": 101}}, "logit_bias"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"other": 1}}, "stream_options.other"),
        ({"stream": True, "stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"functions": [{}]}, "functions"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}}, "response_format"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        ({"structured_outputs": {"regex": "a+"}}, "structured_outputs"),
        ({"reasoning_effort": "high"}, "reasoning_effort"),
        ({"web_search_options": {}}, "web_search_options"),
        ({"modalities": []}, "modalities"),
        ({"modalities": ["text", "text"]}, "modalities"),
        ({"modalities": ["image"]}, "modalities[0]"),
        ({"audio": {"voice": "alloy", "format": "wav"}}, "audio"),
        ({"modalities": ["audio"], "audio": {"voice": "nobody", "format": "wav"}}, "audio.voice"),
        ({"modalities": ["audio"], "audio": {"voice": "alloy", "format": "midi"}}, "audio.format"),
        ({"modalities": ["audio"], "audio": {"pitch": 1}}, "audio.pitch"),
        ({"modalities": ["audio"], "speaker": "nobody"}, "speaker"),
        ({"modalities": ["audio"], "audio": {"voice": "heart"}, "speaker": "bella"}, "speaker"),
        ({"speaker": "bella"}, "speaker"),
        ({"language": "en"}, "language"),
        ({"instructions": "whisper"}, "instructions"),
        ({"modalities": ["audio"], "n": 2}, "n"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": "x"}] * 10_001}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": "x", "mood": 1}]}, "messages[0].mood"),
        ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "audio", "index": 0}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "assistant"}]}, "messages[0].content"),
        ({"messages": [{"role": "tool", "content": "x", "tool_call_id": "1"}]}, "messages[0].role"),
        ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages[0].tool_calls"),
        ({"continue_final_message": True}, "messages"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
        ({"timeout": 0}, "timeout"),
    ],
)
async def test_what_is_refused_is_named(change: dict[str, Any], param: str) -> None:
    async with served() as server:
        response = await server.post(CHAT, {**message(), **change})
        error = error_of(response, 400)
        assert error["param"] == param
        assert error["type"] == "invalid_request_error"
        assert not server.orchestrator.requests


@pytest.mark.parametrize(
    "field",
    [{"tools": []}, {"tool_choice": "none"}, {"response_format": {"type": "text"}}, {"reasoning_effort": "none"}],
)
async def test_asking_for_nothing_is_no_mistake(field: dict[str, Any]) -> None:
    async with served() as server:
        assert (await server.post(CHAT, message(**field))).status_code == 200


@pytest.mark.parametrize("field", [{"audio": {"voice": "bella"}}, {"voice": "bella"}, {"speaker": "Bella"}])
async def test_how_an_answer_is_spoken(field: dict[str, Any]) -> None:
    async with served() as server:
        wanted = message(modalities=["text", "audio"], language="de", instructions="whisper", **field)
        assert (await server.post(CHAT, wanted)).status_code == 200
        speech = server.orchestrator.requests[0].params["speech"]
        assert (speech.voice, speech.language, speech.instructions) == ("bella", "de", "whisper")


async def test_what_a_talker_does_not_honour_is_refused() -> None:
    async with served(pipeline=replace(PIPELINE, speech_fields=())) as server:
        wanted = message(modalities=["text", "audio"], instructions="whisper")
        assert error_of(await server.post(CHAT, wanted), 400)["param"] == "instructions"


async def test_an_unknown_model_is_404() -> None:
    async with served() as server:
        error = error_of(await server.post(CHAT, message(model="gpt-5")), 404)
        assert (error["code"], error["param"]) == ("model_not_found", "model")


async def test_a_model_that_only_writes() -> None:
    """It speaks not, hears not, and says so; large texts are its own business."""
    part = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
    async with served(pipeline=TEXT_ONLY) as server:
        assert error_of(await server.post(CHAT, _plain(modalities=["text", "audio"])), 400)["param"] == "modalities"
        error = error_of(await server.post(CHAT, _plain(messages=[{"role": "user", "content": [part]}])), 400)
        assert error["param"] == "messages[0].content[0].type"
        long = _plain(messages=[{"role": "user", "content": "word " * 100_000}])
        assert (await server.post(CHAT, long)).json()["choices"][0]["message"]["content"] == TEXT
        assert (await server.get("/v1/audio/voices")).json() == {"voices": []}
        assert (await server.get("/v1/audio/models")).json() == {"models": []}
        for path, body in (("/v1/audio/speech", {"input": "Hello."}), ("/v1/audio/transcriptions", {})):
            assert error_of(await server.post(path, body), 400)["code"] == "unsupported_task"


def _plain(**more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "hi"}], **more}


async def test_roles_and_parts_take_the_form_of_templates() -> None:
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "user", "content": "x", "name": "ann"},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}], "annotations": []},
        {"role": "user", "content": [{"type": "text", "text": "y"}]},
    ]
    async with served() as server:
        assert (await server.post(CHAT, message(messages=messages))).status_code == 200
        (request,) = server.orchestrator.requests
    assert request.params["prompt"].messages == [
        {"role": "system", "content": "a\nb"},
        {"role": "user", "content": "x", "name": "ann"},
        {"role": "assistant", "content": "no"},
        {"role": "user", "content": "y"},
    ]


async def test_a_failure_at_admission_keeps_its_status() -> None:
    async with served(lambda request: [overloaded("full", 2.3)]) as server:
        for stream in (False, True):
            response = await server.post(CHAT, message(stream=stream))
            assert error_of(response, 429)["code"] == "overloaded"
            assert response.headers["retry-after"] == "3"


async def test_a_failure_before_the_first_event_keeps_its_status() -> None:
    async with served(lambda request: [0.05, stage_died("llm")]) as server:
        for stream in (False, True):
            error = error_of(await server.post(CHAT, message(stream=stream)), 503)
            assert "llm" in error["message"]


@pytest.mark.parametrize("modalities", [["text"], ["text", "audio"]])
async def test_a_failure_in_a_stream_is_in_band_and_ends_abnormally(modalities: list[str]) -> None:
    script: list[Step] = [delta("one"), delta(" two"), stage_died("vocoder")]
    async with served(lambda request: list(script)) as server:
        received = b""
        body = message(stream=True, modalities=modalities)
        with pytest.raises(httpx.RemoteProtocolError):
            async with server.client.stream("POST", CHAT, json=body) as response:
                assert response.status_code == 200
                async for piece in response.aiter_raw():
                    received += piece
        events = events_of(received.decode())
        assert events[-1]["error"]["code"] == "stage_died"
        assert "vocoder" in events[-1]["error"]["message"]
        assert b"[DONE]" not in received
        assert b'"finish_reason":"stop"' not in received
        metrics = (await server.get("/metrics")).text
        assert 'omni_actors_requests_total{outcome="failed",task="chat"} 1.0' in metrics


async def test_raw_sound_of_a_chat_says_its_rate_and_channels() -> None:
    """Also when there is none."""
    sound = MediaChunk(0, "audio", {"sample_rate": RATE, "channels": 2}, b"\1\0" * 6)
    metadata = {"format": "pcm16", "sample_rate_hz": RATE, "channels": 2}
    wanted = message(modalities=["text", "audio"], audio={"voice": "heart", "format": "pcm16"})
    async with served(lambda request: [delta("a"), sound, Completed({})]) as server:
        response = await server.post(CHAT, {**wanted, "stream": True})
        assert response.headers["x-sample-rate"] == str(RATE)
        chunks = events_of(response.text)[:-1]
        assert [it["choices"][0].get("audio_metadata") for it in chunks] == [None, None, metadata, None]
        assert [it["modality"] for it in chunks] == ["text", "text", "audio", "audio"]
        whole = (await server.post(CHAT, wanted)).json()
        assert whole["choices"][0]["audio_metadata"] == metadata
    async with served(lambda request: [Completed({})]) as server:
        whole = (await server.post(CHAT, wanted)).json()
        assert whole["choices"][0]["audio_metadata"] == {**metadata, "channels": 1}


async def test_every_chunk_of_a_text_says_so() -> None:
    """vLLM-Omni's clients count nothing of a chunk that does not."""
    async with served() as server:
        fields: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}, "n": 2}
        chunks = events_of((await server.post(CHAT, message(**fields))).text)[:-1]
        assert {it["modality"] for it in chunks} == {"text"}
        assert chunks[-1]["usage"] is not None
        text = events_of((await server.post("/v1/completions", {"prompt": "hi", "stream": True})).text)[:-1]
        assert all("modality" not in it for it in text)


async def test_a_failure_behind_a_whole_answer_is_an_error() -> None:
    async with served(lambda request: [delta("one"), stage_died("llm")]) as server:
        error_of(await server.post(CHAT, message()), 503)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_cancels_its_request(stream: bool) -> None:
    """Whole and streamed: what runs for it ends at once, and the next request is served."""
    never = trio.Event()
    async with served(lambda request: [delta("one"), never, Completed({})]) as server:
        body = json.dumps(message(stream=stream)).encode()
        head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        host, port = server.url.removeprefix("http://").split(":")
        client = await trio.open_tcp_stream(host, int(port))
        await client.send_all(head + body)
        with trio.fail_after(5):
            if stream:
                assert b"200" in await client.receive_some()
            while not server.orchestrator.running:
                await trio.sleep(0.005)
            await client.aclose()
            await server.orchestrator.idle.wait()
        assert (server.orchestrator.cancelled, server.orchestrator.completed) == (1, 0)
        never.set()
        assert (await server.post(CHAT, message())).status_code == 200
        metrics = (await server.get("/metrics")).text
        assert 'omni_actors_requests_total{outcome="cancelled",task="chat"} 1.0' in metrics
        assert 'omni_actors_requests_total{outcome="completed",task="chat"} 1.0' in metrics
        assert 'omni_actors_num_requests_running{task="chat"} 0.0' in metrics


async def test_each_event_is_sent_when_it_comes() -> None:
    """The first text is at the client while the model still works on the second."""
    go_on = trio.Event()
    usage = {"llm": Usage()}
    async with served(
        lambda request: [delta("one"), go_on, delta("two", finish_reason="stop"), Completed(usage)]
    ) as it:
        async with it.client.stream("POST", CHAT, json=message(stream=True)) as response:
            received = ""
            async for piece in response.aiter_text():
                received += piece
                if "one" in received and not go_on.is_set():
                    assert "two" not in received
                    go_on.set()
        assert events_of(received)[-1] == "[DONE]"


async def test_text_and_sound_interleave_in_the_order_of_the_stages() -> None:
    meta = {"sample_rate": RATE, "channels": 1}
    script: list[Step] = [
        MediaChunk(0, "audio", meta, b"\1\0" * 3),
        delta("a"),
        MediaChunk(0, "audio", meta, b"\2\0" * 3),
        delta("b", finish_reason="length"),
        MediaChunk(0, "audio", meta, b"\3\0" * 3),
        Completed({}),
    ]
    async with served(lambda request: list(script)) as server:
        response = await server.post(CHAT, message(stream=True, modalities=["audio"]))
        kinds = [next(iter(event["choices"][0]["delta"]["audio"])) for event in events_of(response.text)[1:-1]]
        assert kinds == ["data", "transcript", "data", "transcript", "data", "expires_at"]
        assert '"finish_reason":"length"' in response.text


@pytest.mark.parametrize("format", ["wav", "mp3", "flac", "opus", "aac", "pcm16"])
async def test_spoken_answers_in_every_format_streamed_and_whole(format: str) -> None:
    starts = {"wav": b"RIFF", "mp3": b"\xff", "flac": b"fLaC", "opus": b"OggS", "aac": b"\xff\xf1", "pcm16": SPEECH[:6]}
    async with served() as server:
        wanted = message(modalities=["text", "audio"], audio={"voice": "heart", "format": format})
        whole = (await server.post(CHAT, wanted)).json()["choices"][0]["message"]["audio"]
        streamed = events_of((await server.post(CHAT, {**wanted, "stream": True})).text)[:-1]
        data = b"".join(
            base64.b64decode(event["choices"][0]["delta"]["audio"].get("data", ""))
            for event in streamed
            if "audio" in event["choices"][0]["delta"]
        )
        assert base64.b64decode(whole["data"]).startswith(starts[format])
        assert data.startswith(starts[format])
        if format == "pcm16":
            assert data == base64.b64decode(whole["data"]) == SPEECH
        await server.settled()


async def test_sound_that_cannot_be_read_names_its_field() -> None:
    async with served() as server:
        for data, where in (("####", "data"), (base64.b64encode(b"no sound").decode(), "data")):
            part = {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
            content = [{"type": "text", "text": "listen"}, part]
            error = error_of(await server.post(CHAT, message(messages=[{"role": "user", "content": content}])), 400)
            assert error["param"] == f"messages[0].content[1].input_audio.{where}"
        await server.settled()


async def test_clips_of_a_refused_request_are_freed() -> None:
    async with served() as server:
        part = {"type": "input_audio", "input_audio": {"data": base64.b64encode(wav(SPEECH)).decode(), "format": "wav"}}
        body = message(messages=[{"role": "user", "content": [part]}], temperature=9)
        error_of(await server.post(CHAT, body), 400)
        await server.settled()


async def test_a_large_body_does_not_hold_the_loop() -> None:
    """20 MB of sound: parsed elsewhere, while other requests are answered."""
    async with served() as server:
        data = base64.b64encode(wav(tone(300, RATE))).decode()
        part = {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
        body = json.dumps(message(messages=[{"role": "user", "content": [part]}])).encode()
        response = await server.client.post(CHAT, content=body, headers={"Content-Type": "application/json"})
        assert response.json()["choices"][0]["message"]["content"] == TEXT
        assert server.orchestrator.requests[0].media[0].seconds == 300


async def test_a_large_text_is_parsed_like_a_small_one() -> None:
    async with served() as server:
        long = "word " * 100_000
        assert (await server.post(CHAT, message(long))).status_code == 200
        assert server.orchestrator.requests[0].params["prompt"].messages[0]["content"] == long
        assert error_of(await server.post(CHAT, message(long, extra=1)), 400)["param"] == "extra"


KEPT: list[dict[str, Any]] = [
    {"role": "system", "content": "Be short.", "tool_calls": None, "name": None},
    {"role": "user", "content": "hi", "tool_calls": None, "tool_call_id": None, "function_call": None},
    {"role": "assistant", "content": "Yes?", "parsed": {"a": [None]}, "reasoning_content": None, "reasoning": None},
    {"role": "user", "content": [{"type": "text", "text": "go", "cache_control": None, "image_url": None}]},
]
"""A history as other programs keep it."""


@pytest.mark.parametrize("long", [False, True])
async def test_a_history_that_another_program_kept(long: bool) -> None:
    """Small bodies are parsed in the serving process, large ones go through the media process first."""
    system = {**KEPT[0], "content": "word " * 100_000 if long else "Be short."}
    async with served() as server:
        body = {"messages": [system, *KEPT[1:]], "functions": None, "any": None, "stream_options": None}
        assert (await server.post(CHAT, body)).status_code == 200
        assert server.orchestrator.requests[0].params["prompt"].messages == [
            {"role": "system", "content": system["content"]},
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "Yes?"},
            {"role": "user", "content": "go"},
        ]
        body["messages"] = [system, {**KEPT[2], "reasoning_content": "Hm."}]
        assert error_of(await server.post(CHAT, body), 400)["param"] == "messages[1].reasoning_content"


async def test_null_fields_of_the_other_routes_count_as_absent() -> None:
    data = base64.b64encode(wav(SPEECH)).decode()
    async with served() as server:
        bodies: dict[str, dict[str, Any]] = {
            "/v1/completions": {"prompt": "a", "min_tokens": None, "skip_special_tokens": None},
            "/v1/audio/speech": {"input": "a", "ref_audio": None, "speed": None},
            "/v1/audio/transcriptions": {"input_audio": {"data": data, "odd": None}, "stream": None},
            "/v1/audio/translations": {"input_audio": {"data": data, "odd": None}},
        }
        for path, body in bodies.items():
            response = await server.post(path, {**body, "odd": None, "model": None})
            assert response.status_code == 200, (path, response.text)
            assert error_of(await server.post(path, {**body, "odd": 0}), 400)["param"] == "odd"
        await server.settled()


async def test_a_parts_type_written_with_escapes_is_found() -> None:
    async with served() as server:
        data = base64.b64encode(wav(SPEECH)).decode()
        part = {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
        body = json.dumps(message(messages=[{"role": "user", "content": [part]}]))
        body = body.replace('"input_audio"', '"input\\u005faudio"')
        response = await server.client.post(CHAT, content=body, headers={"Content-Type": "application/json"})
        assert response.status_code == 200, response.text
        assert len(server.orchestrator.requests[0].media) == 1


def requested(request: Request) -> list[Step]:
    return [Completed({})]


@pytest.mark.parametrize("format", ["wav", "mp3", "flac", "opus", "aac", "pcm16"])
async def test_an_answer_with_nothing_to_say_is_a_file_that_players_take(format: str) -> None:
    async with served(lambda request: [delta("..."), Completed({})]) as server:
        wanted = message(modalities=["text", "audio"], audio={"voice": "heart", "format": format})
        whole = (await server.post(CHAT, wanted)).json()["choices"][0]["message"]["audio"]["data"]
        streamed = "".join(
            event["choices"][0]["delta"]["audio"].get("data", "")
            for event in events_of((await server.post(CHAT, {**wanted, "stream": True})).text)[:-1]
        )
        for data in (base64.b64decode(whole), base64.b64decode(streamed)):
            if format == "pcm16":
                assert data == b""
                continue
            with av.open(BytesIO(data)) as container:
                samples = sum(frame.samples for frame in container.decode(audio=0))
            assert samples <= RATE  # players of compressed sound want a frame: it is silent
        await server.settled()


async def test_an_answer_without_text_is_an_answer() -> None:
    async with served(requested) as server:
        assert (await server.post(CHAT, message())).json()["choices"][0]["message"]["content"] == ""
        assert events_of((await server.post(CHAT, message(stream=True))).text)[-1] == "[DONE]"


async def test_pipelined_garbage_after_a_request_is_survived() -> None:
    async with served() as server:
        await raw(server, b"GET /live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n\r\n\x00garbage")
        assert (await server.get("/live")).status_code == 200
