"""A text without speech in it is refused as the client's mistake, over HTTP and in process; the next text is spoken."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from tests.demo.server import Server

from omni_actors import Omni, OmniError

from .stub_voice_client import SAY, expected_sound, say

UNSPEAKABLE: dict[str, Any] = {
    "empty": "",
    "blank": " \t\n",
    "dots": "...",
    "an emoji": "\N{ROBOT FACE}",
    "emoji": "\N{ROBOT FACE}" * 10_000,
    "NUL": "\0",
    "NUL in words": "one\0two",
    "underscores": "__ __",
    "a number": 7,
    "a list": ["one"],
    "null": None,
    "an object": {"text": "one"},
    "true": True,
}


@pytest.mark.parametrize("name", UNSPEAKABLE)
def test_over_http(server: Server, name: str) -> None:
    for extra in ({}, {"stream_format": "sse"}, {"response_format": "wav", "stream": True}):
        status, body = server.post(SAY, say(UNSPEAKABLE[name], **extra))
        assert status == 400, body
        assert body["error"]["param"] == "input"
        assert body["error"]["type"] == "invalid_request_error"
    assert server.post(SAY, say("one two")) == (200, expected_sound("one two"))


def test_without_an_input(server: Server) -> None:
    request = say("x")
    del request["input"]
    status, body = server.post(SAY, request)
    assert (status, body["error"]["param"], body["error"]["code"]) == (400, "input", "missing_required_parameter")


@pytest.mark.parametrize("text", [b'"\\ud800"', b'"\\udc00 a"', b'"a\xff"'])
def test_a_text_that_is_no_unicode(server: Server, text: bytes) -> None:
    request = urllib.request.Request(
        server.url + SAY,
        b'{"model":"stub-voice","input":' + text + b"}",
        {"content-type": "application/json"},
    )
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=20)
    assert refused.value.code == 400
    assert json.loads(refused.value.read())["error"]["type"] == "invalid_request_error"


@pytest.fixture(scope="module")
def omni() -> Iterator[Omni]:
    with Omni("stub-voice", platform="cpu") as it:
        yield it


@pytest.mark.parametrize("name", UNSPEAKABLE)
def test_in_process(omni: Omni, name: str) -> None:
    with pytest.raises(OmniError) as refused:
        omni.speak(UNSPEAKABLE[name])
    assert (refused.value.info.status, refused.value.info.param) == (400, "text")


def test_in_process_the_next_one_is_said(omni: Omni) -> None:
    spoken = omni.speak("one two")
    assert spoken.wav().endswith(expected_sound("one two"))
