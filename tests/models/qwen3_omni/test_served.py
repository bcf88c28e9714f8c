"""Qwen3-Omni over HTTP, from its folder: what comes out is what transformers' model says of the same input."""

from __future__ import annotations

import base64
import io
import json
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from tests.demo.server import Server, serving
from tests.media import pictures
from tests.models.omni.media import Given, audio, image
from tests.models.qwen3_omni.whole import Qwen3Omni

pytestmark = [pytest.mark.slow, pytest.mark.deadline(120)]

TOKENS, FRAMES = 8, 12

TEXT = {"type": "text", "text": "What is this?"}


@pytest.fixture(scope="module")
def folder(tiny_model: Callable[[str], Path]) -> Path:
    return tiny_model("qwen3-omni")


@pytest.fixture(scope="module")
def server(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    settings = ("stages.talker.sampling.temperature=0", f"stages.talker.options.max_tokens={FRAMES}")
    arguments = [word for setting in settings for word in ("--set", setting)]
    with serving(tmp_path_factory.mktemp("served"), str(folder), *arguments) as made:
        yield made


@pytest.fixture(scope="module")
def whole(folder: Path) -> Qwen3Omni:
    return Qwen3Omni(folder)


def url(data: bytes, kind: str) -> dict[str, str]:
    return {"url": f"data:{kind};base64,{base64.b64encode(data).decode()}"}


def picture(given: Given) -> dict[str, Any]:
    return {"type": "image_url", "image_url": url(pictures.png(given.array), "image/png")}


def clip(given: Given) -> dict[str, Any]:
    file = io.BytesIO()
    soundfile.write(file, given.array, 16_000, format="WAV", subtype="FLOAT")
    return {"type": "input_audio", "input_audio": {"data": base64.b64encode(file.getvalue()).decode(), "format": "wav"}}


def film(data: bytes) -> dict[str, Any]:
    return {"type": "video_url", "video_url": url(data, "video/mp4")}


def body(*parts: dict[str, Any], **more: Any) -> dict[str, Any]:
    greedy = {"max_tokens": TOKENS, "temperature": 0, "repetition_penalty": 1.0}
    return {"messages": [{"role": "user", "content": list(parts)}], **greedy, **more}


def ask(server: Server, *parts: dict[str, Any], **more: Any) -> dict[str, Any]:
    status, answer = server.post("/v1/chat/completions", body(*parts, **more))
    assert status == 200, answer
    made: dict[str, Any] = answer
    return made


def said(whole: Qwen3Omni, given: list[Given], voice: str = "ethan") -> tuple[str, np.ndarray[Any, Any]]:
    """transformers' text and samples."""
    parts = [{"type": it.modality, "index": i} for i, it in enumerate(given)]
    messages = [{"role": "user", "content": [*parts, TEXT]}]
    outcome = whole.run(messages, given, voice, TOKENS, FRAMES)
    return whole.tokenizer.decode(outcome.tokens, skip_special_tokens=True), outcome.samples


MEDIA: dict[str, list[Given]] = {
    "text": [],
    "image": [image(70, 100)],
    "audio": [audio(1.5)],
    "both": [image(64, 64, 1), audio(2.0, 1)],
}


def parts_of(given: list[Given]) -> list[dict[str, Any]]:
    return [picture(it) if it.modality == "image" else clip(it) for it in given]


@pytest.mark.parametrize("name", MEDIA)
def test_text_is_transformers(server: Server, whole: Qwen3Omni, name: str) -> None:
    answer = ask(server, *parts_of(MEDIA[name]), TEXT)
    assert answer["choices"][0]["message"]["content"] == said(whole, MEDIA[name])[0]
    assert answer["usage"]["completion_tokens"] == TOKENS


def wave(data: str) -> np.ndarray[Any, Any]:
    samples, rate = soundfile.read(io.BytesIO(base64.b64decode(data)), dtype="int16")
    assert rate == 24_000
    pcm: np.ndarray[Any, Any] = samples
    return pcm


def check_sound(pcm: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> None:
    assert len(pcm) == len(expected)
    assert np.abs(pcm / 32767 - expected).max() <= 0.6 / 32767 + 1e-4


@pytest.mark.parametrize(("name", "voice"), [("text", "ethan"), ("image", "chelsie"), ("both", "aiden")])
def test_speech_is_transformers_whole_and_streamed(server: Server, whole: Qwen3Omni, name: str, voice: str) -> None:
    text, samples = said(whole, MEDIA[name], voice)
    wanted = {"modalities": ["text", "audio"], "audio": {"voice": voice, "format": "wav"}}
    message = ask(server, *parts_of(MEDIA[name]), TEXT, **wanted)["choices"][0]["message"]
    assert message["audio"]["transcript"] == text
    check_sound(wave(message["audio"]["data"]), samples)

    wanted["audio"] = {"voice": voice, "format": "pcm16"}
    events = stream(server, body(*parts_of(MEDIA[name]), TEXT, stream=True, **wanted))
    deltas = [choice["delta"].get("audio") or {} for event in events for choice in event["choices"]]
    assert "".join(delta.get("transcript", "") for delta in deltas) == text
    pieces = [base64.b64decode(delta["data"]) for delta in deltas if delta.get("data")]
    assert len(pieces) > 1
    assert np.array_equal(np.frombuffer(b"".join(pieces), "<i2"), wave(message["audio"]["data"]))


def stream(server: Server, asked: dict[str, Any]) -> list[dict[str, Any]]:
    request = urllib.request.Request(
        server.url + "/v1/chat/completions", json.dumps(asked).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        lines = response.read().decode().split("\n")
    assert "data: [DONE]" in lines
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


def test_videos_are_seen_and_heard(server: Server) -> None:
    data = pictures.video(20, sound_hz=440.0)
    seen = ask(server, film(data), TEXT)
    heard = ask(server, film(data), TEXT, mm_processor_kwargs={"use_audio_in_video": True})
    other = ask(server, film(pictures.video(20, size=(48, 64))), TEXT)
    texts = {answer["choices"][0]["message"]["content"] for answer in (seen, heard, other, ask(server, TEXT))}
    assert len(texts) == 4
    # Two seconds of sound are 26 tokens between two marks.
    assert heard["usage"]["prompt_tokens"] == seen["usage"]["prompt_tokens"] + 28
    again = ask(server, film(data), TEXT)
    assert again["choices"][0]["message"]["content"] == seen["choices"][0]["message"]["content"]
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


def test_a_text_is_said(server: Server, tmp_path: Path) -> None:
    def say(text: str, **more: Any) -> tuple[int, Any]:
        return server.post("/v1/audio/speech", {"input": text, "response_format": "pcm", **more})

    status, one = say("Hello there, how are you?", voice="ethan")
    assert status == 200
    assert isinstance(one, bytes)
    # All frames but the last one's last samples: transposed convolutions look one step ahead.
    assert len(one) / 2 == FRAMES * 1920 - 555
    assert say("Hello there, how are you?", voice="ethan")[1] == one
    assert say("Hello there, how are you?", voice="aiden")[1] != one
    assert say("Good morning, old man.", voice="ethan")[1] != one
    status, shorter = say("Hello there, how are you?", voice="ethan", max_new_tokens=4)
    assert (status, len(shorter) / 2) == (200, 4 * 1920 - 555)


def test_what_cannot_be_is_the_clients_mistake(server: Server) -> None:
    line = Given("image", np.zeros((1, 900, 3), np.uint8))
    for asked, param in (
        (body(picture(line), TEXT), "messages"),
        (body({"type": "text", "text": "see <|image_pad|>"}), "messages"),
        (body(TEXT, modalities=["text", "audio"], audio={"voice": "nobody", "format": "wav"}), "audio.voice"),
    ):
        status, answer = server.post("/v1/chat/completions", asked)
        assert (status, answer["error"]["param"]) == (400, param), answer
    assert ask(server, TEXT)["usage"]["completion_tokens"] == TOKENS


def test_completion_goes_on_with_a_text(server: Server) -> None:
    status, answer = server.post("/v1/completions", {"prompt": "Once upon a time", "max_tokens": 5, "temperature": 0})
    assert status == 200
    assert answer["usage"]["completion_tokens"] == 5
