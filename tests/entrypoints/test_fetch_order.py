"""What can be known without a medium is said before anything is fetched or decoded, on every route that takes media."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from tests.entrypoints.fakes import PIPELINE, Server, answer, served
from tests.entrypoints.test_audio import CLONER, HEAR, SAY
from tests.entrypoints.test_media import CHAT, CLIP, LOCAL, OMNI, PNG, body, image, movie, said, sound
from tests.entrypoints.test_middleware import error_of
from tests.media.web import Web, ok, web

from omni_actors.pipelines.declaration import Pipeline

SMALL = "small"
LARGE = "large"
"""Over ``inline_body_bytes``: parsed in the media process, wherever its media are."""
_PADDING = " " * (300 << 10)

PART = {"image": image, "video": movie, "audio": sound}

SPEECH: dict[str, tuple[dict[str, Any], str]] = {
    "another model": ({"model": "gpt-4o"}, "model"),
    "no frames": ({"max_new_tokens": 0}, "max_new_tokens"),
    "nothing to say": ({"input": " \n"}, "input"),
    "no input": ({"input": None}, "input"),
    "a text that is too long": ({"input": "a" * 5000}, "input"),
    "an unknown field": ({"pitch": 1}, "pitch"),
    "an unknown format": ({"response_format": "midi"}, "response_format"),
    "an unknown language": ({"language": "klingon"}, "language"),
    "a wrong type": ({"seed": "x"}, "seed"),
    "a contradiction": ({"stream": False, "stream_format": "sse"}, "stream"),
    "a wish that the model does not honour": ({"speed": 2.0}, "speed"),
    "another way of speaking": ({"task_type": "CustomVoice"}, "ref_audio"),
    "no text of the clip": ({"x_vector_only_mode": False}, "ref_text"),
    "a field that is refused": ({"speaker_embedding": []}, "speaker_embedding"),
    "a priority out of range": ({"priority": 1000}, "priority"),
    "no time": ({"timeout": 0}, "timeout"),
    "a voice that is none": ({"voice": {"id": 3}}, "voice.id"),
    "two voices": ({"voice": "Vivian", "speaker": "Eric"}, "speaker"),
}
"""A speech body's mistakes, beside a clip by URL, and the fields that they are about."""

TALK: dict[str, tuple[dict[str, Any], str]] = {
    "another model": ({"model": "gpt-4o"}, "model"),
    "an unknown field": ({"pitch": 1}, "pitch"),
    "a number out of range": ({"temperature": 3}, "temperature"),
    "no tokens": ({"max_tokens": 0}, "max_tokens"),
    "two limits": ({"max_tokens": 1, "max_completion_tokens": 2}, "max_tokens"),
    "speech from a model that is mute": ({"modalities": ["text", "audio"]}, "modalities"),
    "a voice without speech": ({"voice": "nobody"}, "voice"),
    "options of a stream that is none": ({"stream_options": {"include_usage": True}}, "stream_options"),
    "a broken schema": ({"response_format": {"type": "json_schema"}}, "response_format"),
    "alternatives without probabilities": ({"top_logprobs": 2}, "top_logprobs"),
    "tools": ({"tools": [{"type": "function"}]}, "tools"),
    "a video's rate": ({"mm_processor_kwargs": {"fps": 0}}, "mm_processor_kwargs.fps"),
    "an answer that is not kept": (
        {"messages": [..., {"role": "assistant", "audio": {"id": "audio_1"}}]},
        "messages[1].audio.id",
    ),
    "a role that is none": ({"messages": [..., {"role": "robot", "content": "x"}]}, "messages[1].role"),
    "a message without content": ({"messages": [..., {"role": "user"}]}, "messages[1].content"),
    "a priority out of range": ({"priority": 1000}, "priority"),
    "no time": ({"timeout": 0}, "timeout"),
}
"""A chat body's mistakes, beside a medium by URL; ``...`` stands for the message that has it."""

SECOND: dict[str, tuple[dict[str, Any], str]] = {
    "a file": (image("file:///etc/passwd"), "image_url.url"),
    "a URL with credentials": (image("http://me:secret@127.0.0.1/x.png"), "image_url.url"),
    "a private address": (image("http://10.0.0.1/x.png"), "image_url.url"),
    "a URL that is none": (image("http://[/x.png"), "image_url.url"),
    "broken base64": (image("data:image/png;base64,####"), "image_url.url"),
    "a picture that is none": (image("data:image/png;base64,aGVsbG8="), "image_url.url"),
    "an unknown part": ({"type": "image_file", "image_file": {}}, "type"),
    "an unknown detail": (image(detail="fine"), "image_url.detail"),
}
"""Parts that are wrong beside one that could be fetched."""

HEARING: dict[str, tuple[dict[str, Any], str]] = {
    "another model": ({"model": "gpt-4o"}, "model"),
    "an unknown field": ({"pitch": 1}, "pitch"),
    "an unknown language": ({"language": "xx"}, "language"),
    "an unknown format": ({"response_format": "midi"}, "response_format"),
    "times that are not shown": ({"timestamp_granularities": ["word"]}, "timestamp_granularities"),
    "a streamed table": ({"stream": True, "response_format": "vtt"}, "response_format"),
    "no time": ({"timeout": 0}, "timeout"),
}


SIZES = (SMALL, LARGE)
DEAD = "http://127.0.0.1:9/x"
"""On the allowed host; nobody listens there."""


async def post(server: Server, path: str, fields: dict[str, Any], size: str) -> httpx.Response:
    content = json.dumps(fields) + (_PADDING if size == LARGE else "")
    return await server.client.post(path, content=content, headers={"Content-Type": "application/json"})


def decoded(server: Server) -> float:
    """How many media the process has decoded."""
    counters = server.harness.engine.counters()
    return sum(counters[f"{kind}_decoded"] for kind in ("clips", "images", "videos"))


@asynccontextmanager
async def listened(pipeline: Pipeline) -> AsyncIterator[tuple[Server, Web]]:
    """A server that may fetch from a listener, which nothing has reached in the end."""
    async with web(ok(PNG)) as listener, served(answer, LOCAL, pipeline=pipeline) as server:
        yield server, listener
        assert listener.connections == 0
        assert server.orchestrator.requests == []
        await server.settled()


async def params(
    server: Server, path: str, bodies: Mapping[str, tuple[dict[str, Any], str]], size: str
) -> dict[str, tuple[int, Any]]:
    """Which of the bodies are not refused for what is wrong with them, and what is said instead."""
    wrong = {}
    for name, (fields, param) in bodies.items():
        response = await post(server, path, fields, size)
        said = response.json().get("error", {}).get("param")
        if response.status_code not in (400, 404) or said != param:
            wrong[name] = response.status_code, said
    return wrong


@pytest.mark.parametrize("size", SIZES)
async def test_a_wrong_speech_body_is_refused_before_its_clip_is_fetched(size: str) -> None:
    usual = {"input": "Hello.", "x_vector_only_mode": True}
    async with listened(CLONER) as (server, listener):
        for url in (listener.url("/voice.wav"), DEAD):
            bodies = {name: ({**usual, "ref_audio": url, **it}, param) for name, (it, param) in SPEECH.items()}
            assert await params(server, SAY, bodies, size) == {}
        assert decoded(server) == 0


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", PART)
async def test_a_wrong_chat_is_refused_before_its_media_are_fetched(kind: str, size: str) -> None:
    async with listened(OMNI) as (server, listener):
        for url in (listener.url(), DEAD):
            chats = {}
            for name, (fields, param) in TALK.items():
                chat = body(said("?"), image(), PART[kind](url), **fields)
                (first,) = body(said("?"), PART[kind](url))["messages"]
                chat["messages"] = [first if it is ... else it for it in fields.get("messages", [...])]
                chats[name] = chat, param
            assert await params(server, CHAT, chats, size) == {}
        assert decoded(server) == 0


@pytest.mark.parametrize("size", SIZES)
async def test_a_wrong_part_is_refused_before_another_one_is_fetched(size: str) -> None:
    async with listened(OMNI) as (server, listener):
        for url in (listener.url(), DEAD):
            chats = {
                name: (body(image(url), part), f"messages[0].content[1].{param}")
                for name, (part, param) in SECOND.items()
            }
            many = body(*[image(url)] * 40)
            assert await params(server, CHAT, {**chats, "too many": (many, "messages")}, size) == {}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("path", [HEAR, "/v1/audio/translations"])
async def test_a_wrong_transcription_is_refused_before_its_clip_is_decoded(path: str, size: str) -> None:
    clip = {"data": base64.b64encode(CLIP).decode(), "format": "wav"}
    own = {"timestamp_granularities", "stream"} if path != HEAR else set()
    async with listened(PIPELINE) as (server, listener):
        bodies = {
            name: ({"input_audio": clip, **fields}, param)
            for name, (fields, param) in HEARING.items()
            if not own & fields.keys()
        }
        assert await params(server, path, bodies, size) == {}
        assert decoded(server) == 0
        urls = {
            "a clip by URL": ({"input_audio": {"data": listener.url()}}, "input_audio.data"),
            "a medium by URL": ({"input_audio": clip, **body(image(listener.url()))}, "messages[0].content[0].type"),
            "another route's clip": ({"input_audio": clip, "ref_audio": listener.url()}, "ref_audio"),
        }
        assert await params(server, path, urls, size) == {}


async def test_a_clip_is_fetched_once_when_nothing_is_wrong() -> None:
    """So the listener of the other tests could have been reached."""
    async with web(ok(CLIP, "audio/wav")) as listener, served(answer, LOCAL, pipeline=CLONER) as server:
        for size in SIZES:
            fields = {"input": "Hello.", "x_vector_only_mode": True, "ref_audio": listener.url(), "voice": "anybody"}
            assert (await post(server, SAY, fields, size)).status_code == 200
        assert listener.connections == 2
        await server.settled()


async def test_a_dead_url_is_said_when_nothing_else_is_wrong() -> None:
    async with served(answer, LOCAL, pipeline=CLONER) as server:
        fields = {"input": "Hello.", "x_vector_only_mode": True, "ref_audio": DEAD}
        error = error_of(await post(server, SAY, fields, SMALL), 400)
        assert (error["param"], error["code"]) == ("ref_audio", "url_unreachable")
        await server.settled()
