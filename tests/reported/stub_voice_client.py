"""Requests to a server of ``stub-voice``, and the answers that are expected: the stub computes them from the words
alone."""

from __future__ import annotations

import re
import socket
from typing import Any

from tests.demo.server import Server

from omni_actors.models.stub.engines import sound, text_of, written

CHAT = "/v1/chat/completions"
SAY = "/v1/audio/speech"


def chat(prompt: str, words: int, **more: Any) -> dict[str, Any]:
    return {"model": "stub-voice", "messages": [{"role": "user", "content": prompt}], "max_tokens": words, **more}


def say(text: str, **more: Any) -> dict[str, Any]:
    return {"model": "stub-voice", "input": text, "voice": "tone", "response_format": "pcm", **more}


def expected_text(prompt: str, words: int) -> str:
    return text_of(written(prompt, words))


def expected_sound(text: str) -> bytes:
    return b"".join(sound(word, place) for place, word in enumerate(text.split()))


def answer_of(reply: tuple[int, Any]) -> str:
    status, body = reply
    assert status == 200, body
    text: str = body["choices"][0]["message"]["content"]
    return text


def metric(server: Server, name: str, **labels: str) -> float:
    """Sum of a metric's series that have these labels."""
    status, text = server.get("/metrics")
    assert status == 200
    total = 0.0
    for line in text.decode().splitlines():
        found = re.fullmatch(rf"{name}(?:\{{(.*)\}})? (\S+)", line)
        if found and all(f'{key}="{value}"' in (found[1] or "") for key, value in labels.items()):
            total += float(found[2])
    return total


def running(server: Server, stage: str) -> float:
    return metric(server, "omni_actors_stage_running", stage=stage)


def connect(server: Server) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", server.port), timeout=20)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")  # closing resets
    return sock
