"""Concurrent requests get the answers that each gets alone, and health answers while stages and codecs work."""

from __future__ import annotations

import base64
import random
import time
from functools import partial

import pytest
from tests.demo.server import Server, in_thread

from .stub_voice_client import CHAT, SAY, answer_of, chat, expected_sound, expected_text, say

SETTINGS = ("stages.writer.replicas=2", "stages.writer.options.step_s=0.003", "stages.speaker.options.step_s=0.002")

pytestmark = pytest.mark.deadline(90)


def said(server: Server, text: str) -> tuple[str, bytes]:
    status, pcm = server.post(SAY, say(text))
    assert status == 200, pcm
    return text, pcm


def written(server: Server, prompt: str, words: int) -> tuple[str, bytes]:
    return answer_of(server.post(CHAT, chat(prompt, words))), b""


def spoken(server: Server, prompt: str, words: int) -> tuple[str, bytes]:
    body = chat(prompt, words, modalities=["text", "audio"], audio={"voice": "tone", "format": "pcm16"})
    status, reply = server.post(CHAT, body)
    assert status == 200, reply
    audio = reply["choices"][0]["message"]["audio"]
    return audio["transcript"], base64.b64decode(audio["data"])


def test_concurrent_answers_are_those_of_each_alone(server: Server) -> None:
    rng = random.Random(19)
    calls = []
    for i in range(48):
        prompt, words = f"question {i} {rng.random()}", rng.randint(1, 40)
        text = expected_text(prompt, words)
        if i % 3 == 0:
            calls.append((partial(said, server, text), (text, expected_sound(text))))
        elif i % 3 == 1:
            calls.append((partial(written, server, prompt, words), (text, b"")))
        else:
            calls.append((partial(spoken, server, prompt, words), (text, expected_sound(text))))
    answers = []
    for call, expected in calls:
        answers.append((in_thread(call), expected))
        time.sleep(rng.random() * 0.02)
    for answer, expected in answers:
        assert answer() == expected


def test_health_is_quick_while_all_else_is_busy(server: Server) -> None:
    """Encoding minutes of sound, and a stage that works on: the probe's path has no codec, model or lock in it."""
    text = "word " * 1200  # a minute of sound
    bodies = [say(text, response_format=it) for it in ("mp3", "flac", "opus", "aac")]
    busy = [in_thread(partial(server.post, SAY, body)) for body in bodies]
    busy.append(in_thread(lambda: server.post(CHAT, chat("long", 1500))))
    took = []
    end = time.monotonic() + 4
    while time.monotonic() < end:
        begun = time.perf_counter()
        assert server.get("/health")[0] == 200
        took.append(time.perf_counter() - begun)
        time.sleep(0.1)
    assert all(call()[0] == 200 for call in busy)
    took.sort()
    assert took[int(len(took) * 0.99)] < 0.25, took[-5:]
