"""``kill -9`` of every worker of a served demo, in mid-answer, over real HTTP: the answer is that of an undisturbed
one."""

from __future__ import annotations

import base64
import http.client
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from .server import Server, serving

pytestmark = [pytest.mark.weights, pytest.mark.slow, pytest.mark.deadline(180)]

FULL_SCALE = 32767


@pytest.fixture(scope="module")
def server(demo_weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("resume")) as it:
        yield it


def spoken_chat() -> dict[str, Any]:
    return {
        "model": "omni-demo",
        "messages": [{"role": "user", "content": "Tell me a story about a small robot."}],
        "modalities": ["text", "audio"],
        "audio": {"voice": "heart", "format": "pcm16"},
        "max_tokens": 60,
        "temperature": 0,
    }


class Heard:
    """A spoken answer as it streams in."""

    def __init__(self) -> None:
        self.text = ""
        self.pcm = b""
        self.pieces = 0

    @property
    def samples(self) -> np.ndarray[Any, Any]:
        return np.frombuffer(self.pcm, "<i2").astype(np.int32)


def listen(server: Server, on_piece: Callable[[Heard], None] = lambda heard: None) -> Heard:
    heard = Heard()
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
    try:
        body = json.dumps(spoken_chat() | {"stream": True})
        connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        assert response.status == 200
        for line in response:
            if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                continue
            chunk = json.loads(line[6:])
            assert "error" not in chunk, chunk
            for choice in chunk["choices"]:
                audio = choice["delta"].get("audio") or {}
                heard.text += audio.get("transcript", "")
                if "data" in audio:
                    heard.pcm += base64.b64decode(audio["data"])
                    heard.pieces += 1
            on_piece(heard)
        assert line in (b"\n", b"\r\n", b"data: [DONE]\n")
    finally:
        connection.close()
    return heard


@pytest.mark.parametrize("stage", ["llm", "acoustic", "vocoder"])
def test_an_answer_is_the_same_when_a_worker_is_killed_in_the_middle(server: Server, stage: str) -> None:
    undisturbed = listen(server)
    assert undisturbed.pieces > 3
    killed: list[int] = []

    def kill_once(heard: Heard) -> None:
        if not killed and (len(heard.text) > 60 if stage == "llm" else heard.pieces == 2):
            killed.append(server.workers()[stage])
            os.kill(killed[0], signal.SIGKILL)

    got = listen(server, kill_once)
    assert killed
    assert got.text == undisturbed.text
    assert len(got.pcm) == len(undisturbed.pcm)
    assert np.abs(got.samples - undisturbed.samples).max() <= 2e-4 * FULL_SCALE
    server.wait_for(server.healthy, 60)
    assert server.workers()[stage] != killed[0]
