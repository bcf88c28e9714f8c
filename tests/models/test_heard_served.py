"""Each family that hears by its folder, over HTTP: ``serve PATH``, then transcriptions and, where it chats, chats."""

from __future__ import annotations

import base64
import io
import json
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from tests.demo.server import Server, serving

pytestmark = [pytest.mark.slow, pytest.mark.deadline(120)]

BOUNDARY = "a-boundary"


def wave(seconds: float = 1.5, seed: int = 0) -> bytes:
    made = io.BytesIO()
    samples = np.random.default_rng(seed).standard_normal(int(16_000 * seconds)) * 0.1
    soundfile.write(made, samples.astype(np.float32), 16_000, format="WAV")
    return made.getvalue()


def transcribe(server: Server, clip: bytes, **fields: str) -> tuple[int, bytes]:
    parts = [f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{n}"\r\n\r\n{v}\r\n' for n, v in fields.items()]
    parts.append(f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n')
    body = "".join(parts).encode() + clip + f"\r\n--{BOUNDARY}--\r\n".encode()
    request = urllib.request.Request(
        server.url + "/v1/audio/transcriptions",
        body,
        {"content-type": f"multipart/form-data; boundary={BOUNDARY}"},
        method="POST",
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def check_transcriptions(server: Server, language: str) -> None:
    """Whole and streamed are the same text, another clip is another, and what it cannot do is refused."""
    status, body = transcribe(server, wave(), language=language)
    assert status == 200, body
    whole = json.loads(body)
    assert len(whole["text"]) > 20
    assert whole["usage"] == {"type": "duration", "seconds": 1.5}

    counted = {"stream_include_usage": "true", "stream_continuous_usage_stats": "true"}
    status, body = transcribe(server, wave(), language=language, stream="true", **counted)
    assert status == 200, body
    events = [json.loads(line[6:]) for line in body.split(b"\n") if line.startswith(b"data: {")]
    deltas = [event["delta"] for event in events if event["type"] == "transcript.text.delta"]
    assert len(deltas) > 3
    assert "".join(deltas).strip() == whole["text"]
    assert events[-1]["type"] == "transcript.text.done"
    assert events[-1]["usage"]["output_tokens"] >= len(deltas)
    counts = [event["usage"]["output_tokens"] for event in events]
    assert counts == sorted(counts)
    assert counts[0] < counts[-1]
    assert len({event["usage"]["input_tokens"] for event in events}) == 1

    # The whole form of vllm bench serve --backend openai-audio.
    model = server.get("/v1/models")[1]["data"][0]["id"]
    form = {"model": model, "temperature": "0.0", "stream": "true", "max_completion_tokens": "7", **counted}
    status, body = transcribe(server, wave(), language=language, **form)
    assert status == 200, body
    *_, done = [json.loads(line[6:]) for line in body.split(b"\n") if line.startswith(b"data: {")]
    assert done["usage"]["output_tokens"] == 7
    assert whole["text"].startswith(done["text"].strip().rstrip("\ufffd"))
    assert len(done["text"]) < len(whole["text"])
    status, body = transcribe(server, wave(), max_completion_tokens="0")
    assert (status, json.loads(body)["error"]["param"]) == (400, "max_completion_tokens")

    assert json.loads(transcribe(server, wave(seed=1), language=language)[1])["text"] != whole["text"]

    status, body = transcribe(server, wave(), language="tlh")
    assert (status, json.loads(body)["error"]["param"]) == (400, "language")
    status, body = transcribe(server, wave(), response_format="srt")
    assert (status, json.loads(body)["error"]["param"]) == (400, "response_format")


def check_chats(server: Server) -> None:
    clip = {"type": "input_audio", "input_audio": {"data": base64.b64encode(wave()).decode(), "format": "wav"}}
    text = {"type": "text", "text": "What is this?"}

    def ask(*parts: dict[str, Any]) -> dict[str, Any]:
        messages = [{"role": "user", "content": list(parts)}]
        status, answer = server.post("/v1/chat/completions", {"messages": messages, "max_tokens": 12, "temperature": 0})
        assert status == 200, answer
        made: dict[str, Any] = answer
        return made

    stream: dict[str, Any] = {"stream": True, "stream_options": {"continuous_usage_stats": True}}
    body = {"messages": [{"role": "user", "content": [clip, text]}], "max_tokens": 12, "temperature": 0, **stream}
    status, lines = server.post("/v1/chat/completions", body)
    assert status == 200, lines
    *chunks, last = [json.loads(line[6:]) for line in lines.splitlines() if line.startswith(b"data: {")]
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert (counts[0], counts[-1], counts) == (0, 12, sorted(counts))
    assert chunks[-1]["usage"] == last["usage"]
    assert {chunk["usage"]["prompt_tokens"] for chunk in chunks} == {last["usage"]["prompt_tokens"]}

    heard, deaf = ask(clip, text), ask(text)
    assert heard["usage"]["completion_tokens"] == 12
    assert heard["usage"]["prompt_tokens"] > deaf["usage"]["prompt_tokens"]
    assert heard["choices"][0]["message"]["content"] != deaf["choices"][0]["message"]["content"]


@pytest.mark.parametrize(("family", "language"), [("qwen3-asr", "en"), ("voxtral", "de"), ("kyutai-stt", "fr")])
def test_a_folder_is_served(family: str, language: str, tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    bound = () if family == "kyutai-stt" else ("--set", "stages.listener.options.max_tokens=64")
    with serving(tmp_path, str(tiny_model(family)), *bound) as server:
        check_transcriptions(server, language)
        if family == "voxtral":
            check_chats(server)
