"""The small pieces of the wire formats: base64 in pieces, chunk templates, subtitles, error messages."""

from __future__ import annotations

import base64
import json
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given

from omni_actors.entrypoints.openai import sse
from omni_actors.entrypoints.openai.errors import MESSAGE_CHARS, error_body, error_headers
from omni_actors.entrypoints.openai.fields import Refused, decode, explain, marks
from omni_actors.entrypoints.openai.sampling import usage_of
from omni_actors.entrypoints.openai.schemas import ChatRequest, CompletionRequest
from omni_actors.entrypoints.openai.subtitles import Segment, srt, vtt
from omni_actors.pipelines.factory import resolve
from omni_actors.protocol.errors import ErrorInfo, OmniError, overloaded
from omni_actors.protocol.request import Usage


@given(st.lists(st.binary(max_size=40)), st.sampled_from([1, 2, 4]))
def test_base64_pieces_join_and_stand_alone(pieces: list[bytes], frame: int) -> None:
    encoder = sse.Base64(frame)
    made = [encoder.feed(piece) for piece in pieces] + [encoder.finish()]
    whole = b"".join(pieces)
    assert base64.b64decode(b"".join(made), validate=True) == whole
    alone = [base64.b64decode(piece, validate=True) for piece in made]
    assert b"".join(alone) == whole
    assert all(len(piece) % frame == 0 for piece in alone[:-1])


@given(st.text(), st.booleans())
def test_a_spliced_chunk_is_the_encoded_one(text: str, usage: bool) -> None:
    template = sse.Template("id", "object", 7, 'mo"del %s', usage=usage)
    choice = sse.encode({"index": 0, "delta": {"content": text}})
    line = template.chunk(choice)
    assert line.startswith(b"data: ")
    assert line.endswith(b"\n\n")
    assert b"\n" not in line[:-2]
    expected: dict[str, Any] = {"id": "id", "object": "object", "created": 7, "model": 'mo"del %s'}
    expected["choices"] = [{"index": 0, "delta": {"content": text}}]
    assert json.loads(line[6:]) == expected | ({"usage": None} if usage else {})
    assert template.around(b'{"index":0,"delta":{"content":%b}}') % sse.encode(text) == line
    assert json.loads(template.usage({"total_tokens": 3})[6:])["choices"] == []


def test_times_of_subtitles() -> None:
    segments = [Segment(start=0.0, end=59.9996, text=" <b> & "), Segment(start=3599.9994, end=36000.5, text="x")]
    assert srt(segments) == (
        "1\n00:00:00,000 --> 00:01:00,000\n<b> & \n\n".replace("& \n", "&\n")
        + "2\n00:59:59,999 --> 10:00:00,500\nx\n\n"
    )
    assert "00:00:00.000 --> 00:01:00.000\n&lt;b&gt; &amp;\n" in vtt(segments)
    assert srt([]) == ""
    assert vtt([]) == "WEBVTT\n\n"


@pytest.mark.parametrize(
    ("message", "param", "code"),
    [
        ("Expected `str`, got `int` - at `$.a[0].b`", "a[0].b", "invalid_value"),
        ("Object contains unknown field `x` - at `$.a[2]`", "a[2].x", "unknown_parameter"),
        ("Object missing required field `messages`", "messages", "missing_required_parameter"),
        ("Expected `int`, got `str` - at `key` in `$.bias`", "bias", "invalid_value"),
        ("Expected `float`, got `str` - at `$.bias[...]`", "bias", "invalid_value"),
        ("Expected `object`, got `array`", None, "invalid_value"),
    ],
)
def test_the_validators_words_become_a_path(message: str, param: str | None, code: str) -> None:
    info = explain(message, ChatRequest).info
    assert (info.param, info.code, info.status) == (param, code, 400)
    assert "`" not in info.message
    assert "$" not in info.message


@pytest.mark.parametrize("kind", [ChatRequest, CompletionRequest])
def test_every_refused_field_accepts_null_and_its_neutral_values(kind: type[msgspec.Struct]) -> None:
    required: dict[str, Any] = (
        {"messages": [{"role": "user", "content": "x"}]} if kind is ChatRequest else {"prompt": "x"}
    )
    refused = marks(kind, Refused)
    assert refused
    for name, mark in refused.items():
        for value in (None, *mark.neutral):
            decode(msgspec.json.encode({**required, name: value}), kind)
        with pytest.raises(OmniError) as error:
            decode(msgspec.json.encode({**required, name: {"anything": 1}}), kind)
        assert error.value.info.param == name


def test_errors_have_four_keys_and_say_when_to_come_back() -> None:
    info = overloaded("full", 0.2).info
    assert set(json.loads(error_body(info))["error"]) == {"message", "type", "param", "code"}
    assert ("retry-after", "1") in error_headers(info)
    assert json.loads(error_body(ErrorInfo(message="x")))["error"]["param"] is None


def test_an_error_repeats_only_so_much_of_a_body() -> None:
    name = "a" * 3_000_000
    info = ErrorInfo(message=f"Unknown voice '{name}'; known: ethan.", param=f"metadata.{name}", status=400)
    error = json.loads(error_body(info))["error"]
    assert len(error["message"]) == len(error["param"]) == MESSAGE_CHARS
    assert error["message"].startswith("Unknown voice 'aaa")
    assert error["message"].endswith("'; known: ethan.")
    short = ErrorInfo(message="a" * MESSAGE_CHARS, status=400)
    assert json.loads(error_body(short))["error"] == {"message": "a" * MESSAGE_CHARS} | dict.fromkeys(
        ("param", "code")
    ) | {"type": "server_error"}


def test_audio_tokens_are_the_frames_that_the_audio_is_made_of() -> None:
    plan = resolve("qwen3-omni", platform="cpu")
    used = {
        "thinker": Usage(prompt_tokens=11, completion_tokens=5),
        "talker": Usage(prompt_tokens=20, completion_tokens=40),
        "code2wav": Usage(audio_output_s=3.2),
    }
    said = usage_of(plan, "chat", used)
    assert (said["prompt_tokens"], said["completion_tokens"], said["total_tokens"]) == (11, 45, 56)
    assert said["completion_tokens_details"]["audio_tokens"] == 40
    del used["talker"], used["code2wav"]
    assert usage_of(plan, "chat", used)["completion_tokens"] == 5
