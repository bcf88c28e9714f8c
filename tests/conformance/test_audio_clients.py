"""What real applications send to the audio routes, and what they do with the answer.

Each test sends the requests of one client (body, headers, order) and reads the answer as that client does. The model is
a script; the application, its server and the media engine are the real ones.
"""

from __future__ import annotations

import base64
import io
import json
import wave
from collections.abc import AsyncIterator
from typing import Any

import av
import numpy as np
import pytest
import trio
from tests.entrypoints.fakes import RATE, SPEECH, TEXT, Server, served
from tests.media.harness import container, strict_wav, tone, wav

VOICES = [
    "alloy",
    "ash",
    "ballad",
    "cedar",
    "coral",
    "echo",
    "fable",
    "marin",
    "nova",
    "onyx",
    "sage",
    "shimmer",
    "verse",
]
ORIGIN = {"origin": "https://app.example"}


def played(data: bytes) -> float:
    """Seconds that a player finds in a file, which it opens by its content."""
    with av.open(io.BytesIO(data)) as file:
        frames = list(file.decode(audio=0))
    return float(sum(frame.samples / frame.sample_rate for frame in frames))


def recorded() -> bytes:
    """A browser's recording: WebM that nobody can seek in, of unknown length."""
    return container("webm", "libopus", tone(1.0, 48_000), seekable=False, live="1")


async def pieces(server: Server, body: dict[str, Any]) -> AsyncIterator[bytes]:
    async with server.client.stream("POST", "/v1/audio/speech", json=body) as response:
        assert response.status_code == 200
        async for piece in response.aiter_raw():
            yield piece


async def test_open_webui_reads_aloud_without_naming_a_format() -> None:
    """It stores the answer by its content type and turns it into mp3 itself."""
    async with served() as server:
        response = await server.post("/v1/audio/speech", {"model": "assistant", "input": "Hello.", "voice": "alloy"})
        assert response.headers["content-type"] == "audio/mpeg"
        assert played(response.content) == pytest.approx(0.5, abs=0.1)
        voices = (await server.get("/v1/audio/voices")).json()["voices"]
        assert all(isinstance(voice["id"], str) and isinstance(voice["name"], str) for voice in voices)


@pytest.mark.parametrize(
    "content_type", ["audio/webm;codecs=opus", "audio/webm", "application/octet-stream", "audio/x-m4a"]
)
async def test_open_webui_sends_what_the_browser_recorded(content_type: str) -> None:
    async with served() as server:
        form = {"model": "assistant", "language": "en"}
        files = {"file": ("recording.webm", recorded(), content_type)}
        response = await server.client.post("/v1/audio/transcriptions", data=form, files=files)
        assert response.json()["text"] == TEXT
        await server.settled()


async def test_open_webui_sends_json_too() -> None:
    async with served() as server:
        sound = {"data": base64.b64encode(recorded()).decode(), "format": "webm"}
        response = await server.post("/v1/audio/transcriptions", {"model": "assistant", "input_audio": sound})
        assert response.json()["text"] == TEXT
        await server.settled()


async def test_livekit_takes_events_or_bytes_by_the_content_type() -> None:
    body = {"model": "assistant", "input": "Hello.", "voice": "ash", "response_format": "mp3", "speed": 1.0}
    async with served() as server:
        response = await server.post("/v1/audio/speech", {**body, "stream_format": "sse"})
        assert response.headers["content-type"].partition(";")[0] == "text/event-stream"
        lines = [line.removeprefix("data: ") for line in response.text.split("\n") if line.startswith("data: ")]
        events = [json.loads(line) for line in lines if line != "[DONE]"]
        assert {event["type"] for event in events[:-1]} == {"speech.audio.delta"}
        assert events[-1]["type"] == "speech.audio.done"
        assert {"input_tokens", "output_tokens", "total_tokens"} <= events[-1]["usage"].keys()
        data = b"".join(base64.b64decode(event["audio"], validate=True) for event in events[:-1])
        assert played(data) == pytest.approx(0.5, abs=0.1)
        response = await server.post("/v1/audio/speech", body)
        assert response.headers["content-type"].startswith("audio/")
        assert response.content == data


@pytest.mark.parametrize("voice", VOICES)
async def test_pipecat_asks_for_pcm_in_one_of_thirteen_voices(voice: str) -> None:
    """It plays bytes as they come at 24 kHz, whatever the headers say."""
    body = {"model": "assistant", "input": "Hello.", "voice": voice, "response_format": "pcm", "speed": 1.0}
    async with served() as server:
        response = await server.post("/v1/audio/speech", body)
        assert response.content == SPEECH
        assert response.headers["x-sample-rate"] == str(RATE)
        assert response.headers["content-type"] == f"audio/pcm;rate={RATE};channels=1"


@pytest.mark.parametrize("stream", [{}, {"stream": True}])
async def test_wyoming_parses_the_wav_header_out_of_the_first_piece(stream: dict[str, bool]) -> None:
    """Three sentences at once, as Home Assistant asks; then everything behind the header is samples."""
    heard: list[bytes] = []

    async def speak(sentence: str) -> None:
        body = {"model": "assistant", "input": sentence, "voice": "heart", "response_format": "wav", "speed": 1.0}
        received = [piece async for piece in pieces(server, body | stream)]
        with wave.open(io.BytesIO(received[0])) as header:
            assert (header.getframerate(), header.getnchannels(), header.getsampwidth()) == (RATE, 1, 2)
        heard.append(strict_wav(b"".join(received))[2])

    async with served() as server:
        async with trio.open_nursery() as nursery:
            for sentence in ("One.", "Two.", "Three."):
                nursery.start_soon(speak, sentence)
        assert heard == [SPEECH] * 3


async def test_wyoming_sends_a_wav_with_a_prompt_and_may_stream_the_answer() -> None:
    form = {"model": "assistant", "language": "en", "temperature": "0.2", "prompt": "Paris", "response_format": "json"}
    async with served() as server:
        files = {"file": ("audio.wav", wav(tone(1.0, 16_000), 16_000), "audio/wav")}
        response = await server.client.post("/v1/audio/transcriptions", data=form, files=files)
        assert response.json()["text"] == TEXT
        response = await server.client.post("/v1/audio/transcriptions", data={**form, "stream": "true"}, files=files)
        events = [json.loads(line[6:]) for line in response.text.split("\n") if line.startswith("data: {")]
        text = "".join(event["delta"] for event in events if event["type"] == "transcript.text.delta")
        assert text == TEXT
        assert events[-1]["text"] == TEXT
        await server.settled()


async def test_wyoming_does_not_take_this_server_for_another() -> None:
    """``/readyz`` with 200 would mean that the voice is the model's name, a body of ``OK`` another server's routes."""
    async with served() as server:
        assert (await server.get("/v1/readyz")).status_code == 404
        assert (await server.get("/health")).text.strip() != "OK"
        assert (await server.get("/test")).status_code == 404


async def test_silly_tavern_wants_mp3_and_only_that() -> None:
    body = {"input": "Hello.", "response_format": "mp3", "voice": "heart", "speed": 1, "model": "assistant"}
    async with served() as server:
        response = await server.post("/v1/audio/speech", body)
        assert response.headers["content-type"] == "audio/mpeg"
        assert response.content[0] == 0xFF


async def test_lobe_chat_speaks_from_the_browser() -> None:
    """A preflight for the authorization header, then a file that the browser decodes."""
    async with served() as server:
        asks = {"access-control-request-method": "POST", "access-control-request-headers": "authorization,content-type"}
        allowed = await server.client.options("/v1/audio/speech", headers=ORIGIN | asks)
        assert allowed.status_code in (200, 204)
        assert allowed.headers["access-control-allow-origin"] in ("*", ORIGIN["origin"])
        assert "authorization" in allowed.headers["access-control-allow-headers"].lower()
        body = {"input": "Hello.", "model": "assistant", "voice": "nova"}
        response = await server.post("/v1/audio/speech", body, headers=ORIGIN | {"authorization": "Bearer x"})
        assert response.headers["access-control-allow-origin"] in ("*", ORIGIN["origin"])
        assert played(response.content) == pytest.approx(0.5, abs=0.1)


async def test_nodes_of_comfyui_take_a_wav_with_exact_sizes() -> None:
    body = {"model": "assistant", "input": "Hello.", "voice": "heart", "response_format": "wav"}
    async with served() as server:
        response = await server.post("/v1/audio/speech", body)
        rate, channels, samples, declared = strict_wav(response.content)
        assert (rate, channels, samples, declared) == (RATE, 1, SPEECH, len(SPEECH))


@pytest.mark.parametrize("format", ["mp3", "opus", "aac", "flac"])
async def test_players_can_begin_before_the_end(format: str) -> None:
    """While the model still speaks, what has come of the stream can be played."""
    from omni_actors.protocol.request import Completed, MediaChunk

    hold = trio.Event()
    chunk = MediaChunk(0, "audio", {"sample_rate": RATE, "channels": 1}, tone(1.0, RATE))
    async with served(lambda request: [chunk, hold, chunk, Completed({})]) as server:
        body = {"model": "assistant", "input": "Hello.", "response_format": format, "stream": True}
        received = b""
        with trio.fail_after(10):
            async for piece in pieces(server, body):
                received += piece
                if not hold.is_set() and len(received) > 500 and played(received) > 0.5:
                    hold.set()
        assert played(received) == pytest.approx(2.0, abs=0.15)


async def test_a_clip_in_a_body_that_has_no_use_for_it_is_freed() -> None:
    part = {"type": "input_audio", "input_audio": {"data": base64.b64encode(wav(tone(10.0))).decode(), "format": "wav"}}
    body = {"messages": [{"role": "user", "content": [part]}], "model": "assistant"}
    async with served() as server:
        for path in ("/v1/audio/speech", "/v1/completions"):
            response = await server.post(path, body)
            assert response.status_code == 400
            await server.settled()


async def test_sound_at_a_rate_that_no_codec_has_is_declared_and_keeps_its_pitch() -> None:
    from omni_actors.protocol.request import Completed, MediaChunk

    meta = {"sample_rate": 22_050, "channels": 1}
    chunk = MediaChunk(0, "audio", meta, tone(1.0, 22_050))
    async with served(lambda request: [chunk, Completed({})]) as server:
        body = {"model": "assistant", "input": "Hello.", "response_format": "opus"}
        response = await server.post("/v1/audio/speech", body)
        assert response.headers["x-sample-rate"] == "22050"
        with av.open(io.BytesIO(response.content)) as file:
            samples = np.concatenate([frame.to_ndarray()[0] for frame in file.decode(audio=0)])
        pitch = np.argmax(np.abs(np.fft.rfft(samples[:48_000]))) * 48_000 / len(samples[:48_000])
        assert pitch == pytest.approx(440, abs=2)
