"""The unmodified openai SDK, sync and async, against the served demo."""

from __future__ import annotations

import base64
import io
import re
import signal
import wave
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from tests.entrypoints.sdk import asynchronous, blocking, strict
from tests.entrypoints.test_audio import TYPES

from .server import Server, in_thread, serving

pytestmark = [pytest.mark.weights, pytest.mark.slow, pytest.mark.deadline(120)]

QUESTION = "What is the capital of France?"
MESSAGES: Any = [{"role": "user", "content": QUESTION}]
GREEDY: Any = {"model": "omni-demo", "messages": MESSAGES, "temperature": 0, "max_tokens": 40}


def loudness(pcm: bytes) -> float:
    samples = np.frombuffer(pcm, "<i2").astype(np.float64)
    return float(np.sqrt(np.mean(samples**2)))


async def test_chat_whole_and_streamed_are_equal(server: Server) -> None:
    whole = strict(await blocking(server.url, lambda it: it.chat.completions.create(**GREEDY, logprobs=True)))
    assert "Paris" in whole.choices[0].message.content

    async def streamed(client: AsyncOpenAI) -> list[Any]:
        stream = await client.chat.completions.create(**GREEDY, stream=True, stream_options={"include_usage": True})
        return [chunk async for chunk in stream]

    *chunks, last = strict(await asynchronous(server.url, streamed))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == whole.choices[0].message.content
    assert last.usage.completion_tokens == whole.usage.completion_tokens
    assert last.usage.prompt_tokens == whole.usage.prompt_tokens
    assert "".join(token.token for token in whole.choices[0].logprobs.content).startswith(text)


async def test_spoken_chat_whole_and_streamed_say_the_same(server: Server) -> None:
    def whole(client: OpenAI) -> Any:
        audio: Any = {"voice": "alloy", "format": "wav"}
        return client.chat.completions.create(**GREEDY, modalities=["text", "audio"], audio=audio)

    def streamed(client: OpenAI) -> list[Any]:
        audio: Any = {"voice": "alloy", "format": "pcm16"}
        return list(client.chat.completions.create(**GREEDY, modalities=["text", "audio"], audio=audio, stream=True))

    audio = strict(await blocking(server.url, whole)).choices[0].message.audio
    assert "Paris" in audio.transcript
    with wave.open(io.BytesIO(base64.b64decode(audio.data))) as file:
        assert (file.getframerate(), file.getnchannels()) == (24000, 1)
        pcm = file.readframes(file.getnframes())
    assert len(pcm) > 24000
    assert loudness(pcm) > 300
    deltas = [chunk.choices[0].delta.audio for chunk in strict(await blocking(server.url, streamed))]
    assert "".join(delta.transcript or "" for delta in deltas) == audio.transcript
    assert b"".join(base64.b64decode(delta.data or "") for delta in deltas) == pcm


async def test_a_spoken_question_is_answered_in_text_and_speech(server: Server) -> None:
    def use(client: OpenAI) -> Any:
        spoken = client.audio.speech.create(model="omni-demo", input=QUESTION, voice="alloy", response_format="wav")
        data = base64.b64encode(spoken.content).decode()
        part: Any = {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
        asked: Any = {**GREEDY, "messages": [{"role": "user", "content": [part]}]}
        text = client.chat.completions.create(**asked)
        audio: Any = {"voice": "alloy", "format": "wav"}
        speech = client.chat.completions.create(**asked, modalities=["text", "audio"], audio=audio)
        answer = base64.b64decode(speech.choices[0].message.audio.data)
        heard = client.audio.transcriptions.create(model="omni-demo", file=("answer.wav", answer))
        return strict(text).choices[0].message.content, strict(heard).text

    text, heard = await blocking(server.url, use)
    assert "Paris" in text
    assert "Paris" in heard


async def test_speech_in_every_format(server: Server) -> None:
    """Each says the same: a recogniser hears it again."""

    def use(client: OpenAI) -> dict[str, str]:
        heard = {}
        for format in TYPES:
            with client.audio.speech.with_streaming_response.create(
                model="omni-demo",
                input="The quick brown fox jumps over the lazy dog.",
                voice="nova",
                response_format=format,  # type: ignore[arg-type]
            ) as answer:
                assert answer.headers["content-type"] == TYPES[format]
                data = b"".join(answer.iter_bytes())
            if format == "pcm":
                sink = io.BytesIO()
                with wave.open(sink, "wb") as file:
                    file.setparams((1, 2, int(answer.headers["x-sample-rate"]), 0, "NONE", ""))
                    file.writeframes(data)
                data = sink.getvalue()
            done = client.audio.transcriptions.create(model="omni-demo", file=(f"speech.{format}", data))
            heard[format] = done.text.lower()
        return heard

    for text in (await blocking(server.url, use)).values():
        assert "quick brown fox" in text
        assert "lazy dog" in text


async def test_transcription_in_every_form(server: Server) -> None:
    async def use(client: AsyncOpenAI) -> Any:
        speech = await client.audio.speech.create(
            model="omni-demo", input="One two three.", voice="alloy", response_format="flac"
        )
        file = ("speech.flac", speech.content)
        segments: Any = ["segment"]
        stream = await client.audio.transcriptions.create(model="omni-demo", file=file, stream=True)
        events = [event async for event in stream]
        verbose = await client.audio.transcriptions.create(
            model="omni-demo", file=file, response_format="verbose_json", timestamp_granularities=segments
        )
        srt = await client.audio.transcriptions.create(model="omni-demo", file=file, response_format="srt")
        return events, verbose, srt

    events, verbose, srt = await asynchronous(server.url, use)
    assert strict(events)[-1].text == strict(verbose).text
    assert verbose.duration > 0.5
    assert verbose.segments[0].end <= verbose.duration + 0.1
    assert "-->" in srt


async def test_mistakes_are_the_sdks_own_exceptions(server: Server) -> None:
    def use(client: OpenAI) -> Any:
        with pytest.raises(openai.NotFoundError) as model:
            client.chat.completions.create(model="gpt-5", messages=MESSAGES)
        with pytest.raises(openai.BadRequestError) as field:
            client.chat.completions.create(**GREEDY, extra_body={"temprature": 1})
        with pytest.raises(openai.BadRequestError) as long:
            client.completions.create(model="omni-demo", prompt="word " * 50_000, max_tokens=1)
        return model.value, field.value, long.value

    model, field, long = await blocking(server.url, use)
    assert model.code == "model_not_found"
    assert field.param == "temprature"
    assert long.status_code == 400


async def test_a_deadline_is_a_status_or_breaks_the_stream(server: Server) -> None:
    asked: Any = {**GREEDY, "max_tokens": 2000, "extra_body": {"ignore_eos": True, "timeout": 1.0}}

    def use(client: OpenAI) -> tuple[int, Exception]:
        with pytest.raises(openai.APIStatusError) as whole:
            client.chat.completions.create(**asked)
        with pytest.raises(openai.APIError) as streamed:
            for _ in client.chat.completions.create(**asked, stream=True):
                pass
        return whole.value.status_code, streamed.value

    status, error = await blocking(server.url, use)
    assert status == 408
    assert getattr(error, "code", None) == "deadline_exceeded"


@pytest.mark.parametrize("modalities", [["text"], ["text", "audio"]])
async def test_a_stream_that_its_client_closes_stops_the_work(server: Server, modalities: list[str]) -> None:
    """Within two seconds nothing runs for it in any stage, long before the answer would have been complete."""
    asked: Any = {**GREEDY, "max_tokens": 2000, "modalities": modalities, "extra_body": {"ignore_eos": True}}
    before = stage_values(server, "completion_tokens_total")

    def use(client: OpenAI) -> None:
        stream = client.chat.completions.create(**asked, stream=True)
        for _ in range(3):
            next(iter(stream))
        stream.close()

    await blocking(server.url, use)
    server.wait_for(lambda: not any(stage_values(server, "running").values()), 2)
    assert stage_values(server, "completion_tokens_total")["llm"] < before["llm"] + 1500
    assert not any(stage_values(server, "num_requests_running", "").values())


def stage_values(server: Server, name: str, prefix: str = "stage_") -> dict[str, float]:
    """A metric's values by stage (or by task)."""
    _, text = server.get("/metrics")
    found = re.findall(
        rf'^omni_actors_{prefix}{name}{{.*?(?:stage|task)="(\w+)".*?}} (\S+)$', text.decode(), re.MULTILINE
    )
    return {stage: float(value) for stage, value in found}


def test_a_signal_lets_the_answer_in_flight_finish(demo_weights: Path, tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        body = {"model": "omni-demo", "messages": MESSAGES, "max_tokens": 60, "ignore_eos": True}
        answer = in_thread(lambda: server.post("/v1/chat/completions", body))
        server.wait_for(lambda: b'num_requests_running{task="chat"} 1.0' in server.get("/metrics")[1], 20)
        server.process.send_signal(signal.SIGTERM)
        status, done = answer()
        assert status == 200, done
        assert done["usage"]["completion_tokens"] == 60
        assert server.process.wait(20) == 0
