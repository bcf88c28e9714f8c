"""Each speech family by its folder, over HTTP: ``serve PATH``, then ``/v1/audio/speech``, whole and streamed."""

from __future__ import annotations

import base64
import io
import json
import urllib.request
import wave
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.demo.server import Server, serving
from tests.models.speech_harness import clip

pytestmark = [pytest.mark.slow, pytest.mark.deadline(180)]

TEXT = "The river runs to the sea."

FAMILIES = {
    # Family: its rate, what a request with a reference clip must say beside it (None: it takes no clip here).
    "csm": (24_000, {"ref_text": "This is me.", "voice": "3"}),
    "pocket-tts": (24_000, {}),
    "dia": (44_100, {"ref_text": "This is me."}),
    # transformers' codec encodes with torchaudio only.
    "higgs-audio": (24_000, {"ref_text": "This is me."} if find_spec("torchaudio") else None),
    "vibevoice": (24_000, {"voice": "1"}),
}


def speech(server: Server, **fields: Any) -> tuple[int, bytes]:
    """Status and body."""
    status, body = server.post("/v1/audio/speech", {"input": TEXT, "max_new_tokens": 24, "seed": 5, **fields})
    return status, body if isinstance(body, bytes) else json.dumps(body).encode()


def streamed(server: Server, **fields: Any) -> bytes:
    """The samples of an event stream, and that it came in several events and ended well."""
    body = {"input": TEXT, "max_new_tokens": 24, "seed": 5, "stream_format": "sse", "response_format": "pcm", **fields}
    request = urllib.request.Request(
        f"{server.url}/v1/audio/speech", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        lines = [line[6:] for line in response.read().decode().splitlines() if line.startswith("data: ")]
    events = [json.loads(line) for line in lines]
    assert len(events) > 2
    assert events[-1]["type"] == "speech.audio.done"
    assert events[-1]["usage"]["output_tokens"] > 0
    return b"".join(base64.b64decode(event["audio"]) for event in events[:-1])


def wav(seconds: float) -> str:
    """A clip as a data URL."""
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(24_000)
        out.writeframes((clip(seconds) * 32767).astype("<i2").tobytes())
    return "data:audio/wav;base64," + base64.b64encode(file.getvalue()).decode()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_speaks_over_http(family: str, tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    rate, reference = FAMILIES[family]
    with serving(tmp_path, str(tiny_model(family))) as server:
        status, whole = speech(server, response_format="wav")
        assert status == 200, whole
        with wave.open(io.BytesIO(whole)) as file:
            assert (file.getframerate(), file.getnchannels()) == (rate, 1)
            pcm = file.readframes(file.getnframes())
        samples = np.frombuffer(pcm, "<i2")
        assert len(samples) > rate // 20
        assert samples.std() > 100, "there is something to hear"
        # A piece's length depends on the clock, and the last bit of a sample on the piece.
        again = np.frombuffer(streamed(server), "<i2")
        assert again.shape == samples.shape
        assert np.abs(again.astype(int) - samples).max() <= 1e-4 * 32768, "streamed is whole, and a seed repeats"
        assert speech(server, seed=6, response_format="pcm")[1] != pcm

        cloned: dict[str, Any] = {"ref_audio": wav(0.5), "response_format": "pcm", **(reference or {})}
        status, body = speech(server, **cloned)
        if reference is None:
            assert (status, json.loads(body)["error"]["param"]) == (400, "ref_audio")
        else:
            assert status == 200, body
            assert body != pcm
        for fields, param in (({"speed": 2.0}, "speed"), ({"voice": "nobody"}, "voice")):
            status, body = speech(server, **fields)
            assert (status, json.loads(body)["error"]["param"]) == (400, param)
