"""An omni model over HTTP, from its folder: what comes out is what transformers' model says of the same input."""

from __future__ import annotations

import base64
import io
import json
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from tests.demo.server import Server, serving
from tests.media import pictures
from tests.models.omni.comparison import Comparison
from tests.models.omni.media import Given, audio, image
from tests.models.omni.whole import Whole
from tests.models.qwen2_5_omni.whole import STEPS

pytestmark = [pytest.mark.slow, pytest.mark.deadline(120)]

TOKENS, FRAMES = 8, 12

TEXT = {"type": "text", "text": "What is this?"}


@dataclass(frozen=True)
class Served:
    """``settings`` are as in the reference. Answers of ``FRAMES`` frames, which are no longer than what a vocoder sees
    at once, come in ``pieces`` at least. A request of so many frames has so many ``samples``. Two seconds of a video's
    sound are ``heard`` tokens and two marks."""

    voices: tuple[str, str]
    settings: tuple[str, ...]
    pieces: int
    samples: Callable[[int], int]
    heard: int


FAMILIES = {
    # Not the last frame's last samples: transposed convolutions look one step ahead.
    "qwen3-omni": Served(("chelsie", "aiden"), (), 2, lambda frames: frames * 1920 - 555, 26),
    "qwen2.5-omni": Served(
        ("Ethan", "Chelsie"),
        (f"steps={STEPS}",),
        1,
        lambda frames: frames * 480,
        50,
    ),
}


@pytest.fixture(scope="module", params=list(FAMILIES))
def family(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def served(family: str) -> Served:
    return FAMILIES[family]


@pytest.fixture(scope="module")
def server(
    family: str, served: Served, tiny_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    settings = ["stages.talker.sampling.temperature=0", f"stages.talker.options.max_tokens={FRAMES}"]
    settings += [f"stages.token2wav.options.{setting}" for setting in served.settings]
    arguments = [word for setting in settings for word in ("--set", setting)]
    with serving(tmp_path_factory.mktemp("served"), str(tiny_model(family)), *arguments) as made:
        yield made


@pytest.fixture(scope="module")
def whole(family: str, compared: Callable[[str], Comparison]) -> Whole:
    return compared(family).whole


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


def said(whole: Whole, given: list[Given], voice: str) -> tuple[str, np.ndarray[Any, Any]]:
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
def test_text_is_transformers(server: Server, served: Served, whole: Whole, name: str) -> None:
    answer = ask(server, *parts_of(MEDIA[name]), TEXT)
    assert answer["choices"][0]["message"]["content"] == said(whole, MEDIA[name], served.voices[0])[0]
    assert answer["usage"]["completion_tokens"] == TOKENS


def wave(data: str) -> np.ndarray[Any, Any]:
    samples, rate = soundfile.read(io.BytesIO(base64.b64decode(data)), dtype="int16")
    assert rate == 24_000
    pcm: np.ndarray[Any, Any] = samples
    return pcm


def alike(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> bool:
    """Whether two runs have said the same. (How sound is cut into windows is a matter of timing, and of rounding.)"""
    return len(one) == len(other) and bool(np.abs(one.astype(int) - other).max() <= 4)


def check_sound(pcm: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> None:
    assert len(pcm) == len(expected)
    assert np.abs(pcm / 32767 - expected).max() <= 0.6 / 32767 + 1e-4


@pytest.mark.parametrize(("name", "voice"), [("text", 0), ("image", 0), ("both", 1)])
def test_speech_is_transformers_whole_and_streamed(
    server: Server, served: Served, whole: Whole, name: str, voice: int
) -> None:
    voice_name = served.voices[voice]
    text, samples = said(whole, MEDIA[name], voice_name)
    wanted = {"modalities": ["text", "audio"], "audio": {"voice": voice_name, "format": "wav"}}
    message = ask(server, *parts_of(MEDIA[name]), TEXT, **wanted)["choices"][0]["message"]
    assert message["audio"]["transcript"] == text
    check_sound(wave(message["audio"]["data"]), samples)

    wanted["audio"] = {"voice": voice_name, "format": "pcm16"}
    events = stream(server, body(*parts_of(MEDIA[name]), TEXT, stream=True, **wanted))
    deltas = [choice["delta"].get("audio") or {} for event in events for choice in event["choices"]]
    assert "".join(delta.get("transcript", "") for delta in deltas) == text
    pieces = [base64.b64decode(delta["data"]) for delta in deltas if delta.get("data")]
    assert len(pieces) >= served.pieces
    assert alike(np.frombuffer(b"".join(pieces), "<i2"), wave(message["audio"]["data"]))


def stream(server: Server, asked: dict[str, Any]) -> list[dict[str, Any]]:
    request = urllib.request.Request(
        server.url + "/v1/chat/completions", json.dumps(asked).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        lines = response.read().decode().split("\n")
    assert "data: [DONE]" in lines
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


def test_videos_are_seen_and_heard(server: Server, served: Served) -> None:
    data = pictures.video(20, sound_hz=440.0)
    seen = ask(server, film(data), TEXT)
    heard = ask(server, film(data), TEXT, mm_processor_kwargs={"use_audio_in_video": True})
    other = ask(server, film(pictures.video(20, size=(48, 64))), TEXT)
    texts = {answer["choices"][0]["message"]["content"] for answer in (seen, heard, other, ask(server, TEXT))}
    assert len(texts) == 4
    assert heard["usage"]["prompt_tokens"] == seen["usage"]["prompt_tokens"] + served.heard + 2
    again = ask(server, film(data), TEXT)
    assert again["choices"][0]["message"]["content"] == seen["choices"][0]["message"]["content"]
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


def test_a_text_is_said(server: Server, served: Served) -> None:
    def say(text: str, **more: Any) -> np.ndarray[Any, Any]:
        status, sound = server.post("/v1/audio/speech", {"input": text, "response_format": "pcm", **more})
        assert status == 200
        assert isinstance(sound, bytes)
        return np.frombuffer(sound, "<i2")

    one, other = served.voices
    sound = say("Hello there, how are you?", voice=one)
    assert len(sound) == served.samples(FRAMES)
    assert alike(say("Hello there, how are you?", voice=one), sound)
    assert not alike(say("Hello there, how are you?", voice=other), sound)
    assert not alike(say("Good morning, old man.", voice=one), sound)
    assert len(say("Hello there, how are you?", voice=one, max_new_tokens=4)) == served.samples(4)
    status, listed = server.get("/v1/audio/voices")
    assert status == 200
    assert {name.lower() for name in served.voices} <= {voice["id"] for voice in listed["voices"]}


def test_a_long_text_is_heard_while_it_is_said(server: Server, served: Served) -> None:
    """And is the same as when it is asked for at once, but for what rounding makes of other windows."""
    asked = {"input": "Once upon a time.", "response_format": "pcm", "voice": served.voices[0], "max_new_tokens": 120}
    status, whole = server.post("/v1/audio/speech", {**asked, "stream": False})
    assert status == 200
    status, events = server.post("/v1/audio/speech", {**asked, "stream_format": "sse"})
    assert status == 200
    lines = [json.loads(line[6:]) for line in events.decode().split("\n") if line.startswith("data: {")]
    pieces = [base64.b64decode(line["audio"]) for line in lines if line["type"] == "speech.audio.delta"]
    assert len(pieces) > 2
    heard, expected = (np.frombuffer(it, "<i2").astype(int) for it in (b"".join(pieces), whole))
    # The talker may end by itself, but not before several pieces have left.
    assert len(heard) == len(expected)
    assert served.samples(24) <= len(heard) <= served.samples(120)
    assert np.abs(heard - expected).max() <= 1


def test_what_cannot_be_is_the_clients_mistake(server: Server) -> None:
    line = Given("image", np.zeros((1, 900, 3), np.uint8))
    for asked, param in (
        (body(picture(line), TEXT), "messages"),
        (body(TEXT, modalities=["text", "audio"], audio={"voice": "nobody", "format": "wav"}), "audio.voice"),
    ):
        status, answer = server.post("/v1/chat/completions", asked)
        assert (status, answer["error"]["param"]) == (400, param), answer
    assert ask(server, TEXT)["usage"]["completion_tokens"] == TOKENS


def test_what_only_the_model_knows_is_said_before_a_url_is_fetched(server: Server) -> None:
    """Nothing can be fetched from there: who looked the name up first would say that."""
    part = {"type": "image_url", "image_url": {"url": "http://localhost:9/picture.png"}}
    for more, param in (
        ({"max_tokens": 1_000_000_000}, "messages"),
        ({"logit_bias": {"99999999": 1}}, "logit_bias"),
        ({"stop_token_ids": [99_999_999]}, "stop_token_ids"),
        ({"chat_template_kwargs": {"chat_template": "x"}}, "chat_template_kwargs.chat_template"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
        ({}, "messages[0].content[0].image_url.url"),
    ):
        status, answer = server.post("/v1/chat/completions", {**body(part, TEXT), **more})
        assert (status, answer["error"]["param"]) == (400, param), answer
    long = {"type": "text", "text": "word " * 200_000}
    status, answer = server.post("/v1/chat/completions", body(part, long))
    assert (status, answer["error"]["code"]) == (400, "context_length_exceeded"), answer


def test_a_media_token_in_a_text_is_text_and_takes_no_picture(server: Server, whole: Whole) -> None:
    """Beside a picture too: the picture stays where its part stands."""
    written = {"type": "text", "text": f"see {whole.tokenizer.image_token}"}
    noise = Given("image", np.random.default_rng(0).integers(0, 255, (56, 56, 3), np.uint8))
    for content in ((written,), (written, picture(noise))):
        assert ask(server, *content)["usage"]["completion_tokens"] == TOKENS


def test_completion_goes_on_with_a_text(server: Server) -> None:
    status, answer = server.post("/v1/completions", {"prompt": "Once upon a time", "max_tokens": 5, "temperature": 0})
    assert status == 200
    assert answer["usage"]["completion_tokens"] == 5
