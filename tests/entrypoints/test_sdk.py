"""The unmodified openai SDK, sync and async: everything parses into its typed models with nothing left over."""

from __future__ import annotations

import base64
import io
import wave
from dataclasses import replace
from typing import Any

import openai
import pydantic
import pytest
from openai import AsyncOpenAI, OpenAI
from tests.entrypoints.fakes import PIPELINE, RATE, SPEECH, TEXT, Step, served
from tests.entrypoints.sdk import asynchronous, blocking, strict
from tests.media.harness import strict_wav, wav
from tests.pipelines.builders import plan_of

from omni_actors.protocol.request import Completed, Request, TextDelta, Usage

MESSAGES: Any = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Capital of France?"}]
MAGIC = {"mp3": b"\xff", "opus": b"OggS", "aac": b"\xff\xf1", "flac": b"fLaC", "wav": b"RIFF", "pcm": SPEECH[:8]}


async def test_chat_whole() -> None:
    async with served() as server:
        done = strict(
            await blocking(
                server.url,
                lambda it: it.chat.completions.create(
                    model="assistant", messages=MESSAGES, logprobs=True, top_logprobs=2, n=2
                ),
            )
        )
        assert [choice.message.content for choice in done.choices] == [TEXT, TEXT]
        assert done.choices[0].finish_reason == "stop"
        assert "".join(token.token for token in done.choices[1].logprobs.content) == TEXT
        assert bytes(done.choices[0].logprobs.content[0].top_logprobs[1].bytes) == b"\xff"
        assert done.usage.total_tokens == done.usage.prompt_tokens + done.usage.completion_tokens == 11 + 14
        assert done.usage.prompt_tokens_details.cached_tokens == 3


async def test_chat_streamed_equals_whole() -> None:
    async with served() as server:

        async def use(client: AsyncOpenAI) -> list[Any]:
            stream = await client.chat.completions.create(
                model="assistant", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
            )
            return [chunk async for chunk in stream]

        chunks = strict(await asynchronous(server.url, use))
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == TEXT
        assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]].count("stop") == 1
        assert chunks[0].choices[0].delta.role == "assistant"
        assert chunks[-1].choices == []
        assert [chunk.usage is None for chunk in chunks] == [True] * (len(chunks) - 1) + [False]
        assert chunks[-1].usage.completion_tokens == 7


async def test_chat_helper_accumulates_the_stream() -> None:
    async with served() as server:

        def use(client: OpenAI) -> Any:
            with client.chat.completions.stream(model="assistant", messages=MESSAGES) as stream:
                return stream.get_final_completion()

        assert (await blocking(server.url, use)).choices[0].message.content == TEXT


async def test_spoken_chat_whole() -> None:
    async with served() as server:
        done = strict(
            await blocking(
                server.url,
                lambda it: it.chat.completions.create(
                    model="assistant",
                    messages=MESSAGES,
                    modalities=["text", "audio"],
                    audio={"voice": "alloy", "format": "wav"},
                ),
            )
        )
        audio = done.choices[0].message.audio
        assert audio.transcript == TEXT
        assert audio.expires_at > done.created
        assert done.choices[0].message.content is None
        rate, channels, samples, declared = strict_wav(base64.b64decode(audio.data))
        assert (rate, channels, samples, declared) == (RATE, 1, SPEECH, len(SPEECH))


async def test_spoken_chat_streamed() -> None:
    """Pieces decode alone to whole samples, and joined to the whole; text and audio come interleaved."""
    async with served() as server:

        def use(client: OpenAI) -> list[Any]:
            stream = client.chat.completions.create(
                model="assistant",
                messages=MESSAGES,
                modalities=["text", "audio"],
                audio={"voice": "alloy", "format": "pcm16"},
                stream=True,
            )
            return list(stream)

        chunks = strict(await blocking(server.url, use))
        deltas = [chunk.choices[0].delta.audio for chunk in chunks]
        assert [delta.id is not None for delta in deltas] == [True] + [False] * (len(deltas) - 1)
        assert "".join(delta.transcript or "" for delta in deltas) == TEXT
        pieces = [delta.data for delta in deltas if delta.data]
        assert base64.b64decode("".join(pieces)) == SPEECH
        assert all(len(base64.b64decode(piece)) % 2 == 0 for piece in pieces)
        first_audio = next(place for place, delta in enumerate(deltas) if delta.data)
        last_text = max(place for place, delta in enumerate(deltas) if delta.transcript)
        assert first_audio < last_text
        assert deltas[-1].expires_at is not None
        assert chunks[-1].choices[0].finish_reason == "stop"
        # Where OpenAI's form has no place for it: what a chunk brings, and what raw PCM is.
        metadata = {"format": "pcm16", "sample_rate_hz": RATE, "channels": 1}
        for chunk, delta in zip(chunks[:-1], deltas[:-1], strict=True):
            assert chunk.modality == ("audio" if delta.data else "text")
            assert (chunk.choices[0].model_extra or {}) == ({"audio_metadata": metadata} if delta.data else {})
        assert chunks[-1].modality == "audio"


async def test_a_later_turn_refers_to_a_spoken_answer() -> None:
    async with served() as server:

        def use(client: OpenAI) -> Any:
            spoken = client.chat.completions.create(model="assistant", messages=MESSAGES, modalities=["audio"])
            id = spoken.choices[0].message.audio.id  # type: ignore[union-attr]
            again: Any = [*MESSAGES, {"role": "assistant", "audio": {"id": id}}, {"role": "user", "content": "Sure?"}]
            client.chat.completions.create(model="assistant", messages=again)
            again[2]["audio"]["id"] = "audio_unknown"
            with pytest.raises(openai.BadRequestError) as refused:
                client.chat.completions.create(model="assistant", messages=again)
            return refused.value

        error = await blocking(server.url, use)
        assert error.param == "messages[2].audio.id"
        assert server.orchestrator.requests[1].params["prompt"].messages[2]["content"] == TEXT


async def test_an_answer_can_be_sent_back_unchanged() -> None:
    async with served() as server:

        def use(client: OpenAI) -> None:
            for modalities in (["text"], ["text", "audio"]):
                done = client.chat.completions.create(
                    model="assistant",
                    messages=MESSAGES,
                    modalities=modalities,  # type: ignore[arg-type]
                )
                again: Any = [*MESSAGES, done.choices[0].message, {"role": "user", "content": "Sure?"}]
                client.chat.completions.create(model="assistant", messages=again)

        await blocking(server.url, use)
        for request in server.orchestrator.requests[1::2]:
            assert request.params["prompt"].messages[2] == {"role": "assistant", "content": TEXT}


class Answer(pydantic.BaseModel):
    text: str


FORMS = {**dict.fromkeys(("whole", "parsed", "streamed")), "typed": Answer}
"""How the SDK is asked for an answer → the type that it reads it into."""


@pytest.mark.parametrize("way", FORMS)
async def test_an_answer_of_each_helper_can_be_sent_back(way: str) -> None:
    """As the object that the SDK gave and as its fields, over two turns."""
    plan = plan_of(PIPELINE)  # as if vLLM computed what is written: answers of a type are held to it
    written = replace(plan.stage("llm").declaration, engine="vllm")
    stages = tuple(replace(it, declaration=written) if it.name == "llm" else it for it in plan.stages)
    said = '{"text":"Paris"}' if FORMS[way] else TEXT

    def script(request: Request) -> list[Step]:
        return [TextDelta(0, 0, said, [1], "stop"), Completed({"llm": Usage()})]

    async with served(script, plan=replace(plan, stages=stages)) as server:

        def ask(client: OpenAI, messages: Any) -> Any:
            if way == "whole":
                return client.chat.completions.create(model="assistant", messages=messages)
            if way == "streamed":
                with client.chat.completions.stream(model="assistant", messages=messages) as stream:
                    return stream.get_final_completion()
            form: Any = FORMS[way] or openai.omit
            return client.chat.completions.parse(model="assistant", messages=messages, response_format=form)

        def use(client: OpenAI) -> list[Any]:
            messages = list(MESSAGES)
            answers = []
            for turn in range(3):
                answers.append(ask(client, messages).choices[0].message)
                kept = answers[-1] if turn % 2 else answers[-1].model_dump(warnings=False)
                messages += [kept, {"role": "user", "content": "Sure?"}]
            return answers

        answers = await blocking(server.url, use)
        if FORMS[way]:
            assert [it.parsed for it in answers] == [Answer(text="Paris")] * 3
            assert all(it.params["sampling"].constraint.json for it in server.orchestrator.requests)
        history = server.orchestrator.requests[2].params["prompt"].messages
        assert history[2:5:2] == [{"role": "assistant", "content": said}] * 2


async def test_spoken_question() -> None:
    async with served() as server:
        data = base64.b64encode(wav(SPEECH)).decode()
        question: Any = [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "Answer:"},
                    {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}},
                ],
            }
        ]
        done = strict(
            await blocking(server.url, lambda it: it.chat.completions.create(model="assistant", messages=question))
        )
        assert done.choices[0].message.content == TEXT
        (request,) = server.orchestrator.requests
        assert request.inputs == ("text", "audio")
        assert [clip.seconds for clip in request.media] == [0.5]
        assert request.params["prompt"].messages[0]["content"] == [
            {"type": "text", "text": "Answer:"},
            {"type": "audio", "index": 0},
        ]
        await server.settled()


async def test_completion() -> None:
    async with served() as server:
        done = strict(
            await blocking(
                server.url,
                lambda it: it.completions.create(model="assistant", prompt=["one", "two"], n=2, logprobs=1, echo=True),
            )
        )
        assert [(choice.index, choice.text) for choice in done.choices] == [(i, TEXT) for i in range(4)]
        assert done.choices[3].logprobs.tokens[0] == "Paris"
        assert done.choices[3].logprobs.text_offset[:3] == [0, 5, 8]
        assert done.usage.prompt_tokens == 22

        async def use(client: AsyncOpenAI) -> list[Any]:
            return [chunk async for chunk in await client.completions.create(model="m", prompt=[1, 2, 3], stream=True)]

        with pytest.raises(openai.NotFoundError) as missing:
            await asynchronous(server.url, use)
        assert missing.value.code == "model_not_found"


async def test_completion_streamed() -> None:
    async with served() as server:

        async def use(client: AsyncOpenAI) -> list[Any]:
            stream = await client.completions.create(
                model="assistant", prompt=["one", "two"], stream=True, stream_options={"include_usage": True}
            )
            return [chunk async for chunk in stream]

        chunks = strict(await asynchronous(server.url, use))
        for index in (0, 1):
            texts = [chunk.choices[0].text for chunk in chunks[:-1] if chunk.choices[0].index == index]
            assert "".join(texts) == TEXT
        assert chunks[-1].usage.completion_tokens == 14


@pytest.mark.parametrize("format", MAGIC)
async def test_speech_in_every_format(format: Any) -> None:
    async with served() as server:
        answer = await blocking(
            server.url,
            lambda it: it.audio.speech.create(
                model="assistant", input="Hello there.", voice="coral", response_format=format
            ),
        )
        assert answer.content.startswith(MAGIC[format])
        if format == "wav":
            with wave.open(io.BytesIO(answer.content)) as file:
                assert file.getnframes() == len(SPEECH) // 2


async def test_speech_streamed() -> None:
    async with served() as server:

        async def use(client: AsyncOpenAI) -> tuple[str, str, bytes]:
            async with client.audio.speech.with_streaming_response.create(
                model="assistant", input="Hello there.", voice="coral", response_format="pcm"
            ) as answer:
                data = b"".join([piece async for piece in answer.iter_bytes()])
                return answer.headers["content-type"], answer.headers["x-sample-rate"], data

        assert await asynchronous(server.url, use) == ("audio/pcm;rate=24000;channels=1", "24000", SPEECH)


async def test_transcription() -> None:
    async with served() as server:

        def use(client: OpenAI) -> dict[str, Any]:
            return {
                format: client.audio.transcriptions.create(
                    model="assistant",
                    file=("question.wav", wav(SPEECH)),
                    response_format=format,  # type: ignore[call-overload]
                    **more,
                )
                for format, more in (
                    ("json", {}),
                    ("text", {}),
                    ("srt", {}),
                    ("vtt", {}),
                    ("verbose_json", {"timestamp_granularities": ["word", "segment"]}),
                )
            }

        done = await blocking(server.url, use)
        assert strict(done["json"]).text == TEXT
        assert done["text"].strip() == TEXT
        assert done["srt"] == f"1\n00:00:00,000 --> 00:00:01,500\n{TEXT}\n\n"
        assert done["vtt"] == f"WEBVTT\n\n00:00:00.000 --> 00:00:01.500\n{TEXT}\n\n"
        verbose = strict(done["verbose_json"])
        assert (verbose.language, verbose.duration, verbose.text) == ("en", 0.5, TEXT)
        assert verbose.segments[0].text == TEXT
        assert verbose.words[0].word == "Paris"
        await server.settled()


async def test_transcription_streamed() -> None:
    async with served() as server:

        async def use(client: AsyncOpenAI) -> list[Any]:
            stream = await client.audio.transcriptions.create(
                model="assistant", file=("question.wav", wav(SPEECH)), stream=True
            )
            return [event async for event in stream]

        events = strict(await asynchronous(server.url, use))
        assert "".join(event.delta for event in events[:-1]) == events[-1].text == TEXT
        assert events[-1].usage.output_tokens == 9


@pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")
async def test_translation() -> None:
    async with served() as server:

        def use(client: OpenAI) -> tuple[Any, Any]:
            file = ("question.wav", wav(SPEECH))
            return (
                client.audio.translations.create(model="assistant", file=file),
                client.audio.translations.create(model="assistant", file=file, response_format="verbose_json"),
            )

        plain, verbose = await blocking(server.url, use)
        assert strict(plain).text == strict(verbose).text == TEXT
        assert server.orchestrator.requests[0].params["transcription"].task == "translate"


async def test_models() -> None:
    """The one answer with more than the SDK knows: what the model can do."""
    async with served() as server:
        listed = await blocking(server.url, lambda it: list(it.models.list()))
        one = await blocking(server.url, lambda it: it.models.retrieve("assistant"))
        assert [model.id for model in listed] == ["assistant"] == [one.id]
        assert set(one.model_extra) == {"capabilities"}
        assert one.model_extra["capabilities"]["tasks"]["chat"]["outputs"] == ["text", "audio"]
