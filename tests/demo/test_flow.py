"""How a request flows through the demo: overlap, isolation, cancellation. In this process, real models."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
import trio

from omni_actors import AsyncOmni, Omni, OmniError, Output, Request
from omni_actors.protocol.params import Prompt, Sampling, Speech, Transcription
from omni_actors.protocol.request import Event, MediaChunk, TextDelta

pytestmark = [pytest.mark.weights, pytest.mark.slow, pytest.mark.deadline(120)]

T = TypeVar("T")

QUESTION = "Tell me about the city of Paris in three sentences."


def chat(text: str, *outputs: str, max_tokens: int = 60) -> Request:
    params: dict[str, Any] = {
        "prompt": Prompt(messages=[{"role": "user", "content": text}]),
        "sampling": Sampling(temperature=0.0, max_tokens=max_tokens),
    }
    if "audio" in outputs:
        params["speech"] = Speech()
    return Request(task="chat", outputs=outputs or ("text",), params=params)


async def events_of(omni: AsyncOmni, request: Request) -> list[Event]:
    async with omni.open(request) as stream:
        return [event async for event in stream]


def order(events: list[Event]) -> tuple[int, int]:
    """Where the first audio and the last token are."""
    first_audio = next(i for i, event in enumerate(events) if type(event) is MediaChunk)
    last_token = max(i for i, event in enumerate(events) if type(event) is TextDelta and event.token_ids)
    return first_audio, last_token


def pcm(events: list[Event]) -> bytes:
    return b"".join(event.data for event in events if type(event) is MediaChunk)


Run = Callable[[Callable[[AsyncOmni], Awaitable[T]]], T]


@pytest.fixture(scope="module")
def run(demo_weights: Path) -> Iterator[Run[Any]]:
    """Runs a coroutine function in the trio loop of one deployment that all tests here share."""
    with Omni() as omni:
        yield lambda function: omni._portal.call(function, omni._omni)


def test_speech_begins_while_the_llm_still_writes_and_in_full_mode_after_it(run: Run[list[Event]]) -> None:
    async def ask(omni: AsyncOmni) -> list[Event]:
        return await events_of(omni, chat(QUESTION, "text", "audio"))

    streamed = run(ask)
    first_audio, last_token = order(streamed)
    assert first_audio < last_token
    with Omni(overrides=["edges.acoustic.sentences.mode=full"]) as omni:
        whole = omni._portal.call(ask, omni._omni)
    first_audio, last_token = order(whole)
    assert first_audio > last_token
    assert pcm(streamed) == pcm(whole)


def test_a_request_touches_only_the_stages_that_it_needs(run: Run[None]) -> None:
    async def main(omni: AsyncOmni) -> None:
        async def touched(request: Request) -> set[str]:
            before = await _work(omni)
            await omni.run(request)
            after = await _work(omni)
            return {name for name in after if after[name] != before[name]}

        assert await touched(chat("Hi", max_tokens=5)) == {"llm"}
        assert await touched(chat("Hi", "text", "audio", max_tokens=5)) == {"llm", "acoustic", "vocoder"}
        speech = _spoken("What is the time?")
        assert await touched(speech) == {"acoustic", "vocoder"}
        spoken = await omni.run(speech)
        transcription = Request(
            task="transcription",
            inputs=("audio",),
            params={"transcription": Transcription()},
            media=(await omni.decode(spoken.wav()),),
        )
        assert await touched(transcription) == {"media", "asr"}

    run(main)


async def _work(omni: AsyncOmni) -> dict[str, float]:
    """How much each stage has done."""
    counters = await omni.orchestrator.counters()
    done = {name: replicas[0].get("finished_total", 0) for name, replicas in counters.items()}
    return done | {"media": counters["media"][0]["clips_delivered"]}


def test_a_cancelled_answer_leaves_no_block_clip_or_buffer(run: Run[None]) -> None:
    async def main(omni: AsyncOmni) -> None:
        for turns in (1, 5, 12):
            async with omni.open(chat("Tell me a long story.", "text", "audio", max_tokens=500)) as stream:
                for _ in range(turns):
                    await stream.receive()
        clip = await omni.decode((await omni.run(_spoken("Hello."))).wav())
        await omni.media.discard([clip])
        # What is discarded is freed a moment later.
        while omni.orchestrator.inflight or (await omni.orchestrator.counters())["media"][0].get("clips", 1):
            await trio.sleep(0.01)
        for stage, replicas in (await omni.orchestrator.counters()).items():
            for gauge in ("requests", "running", "waiting", "kv_blocks_used", "clips", "jobs", "arena_used_bytes"):
                assert replicas[0].get(gauge, 0) == 0, (stage, gauge)

    run(main)


def test_concurrent_answers_equal_those_given_alone(run: Run[None]) -> None:
    prompts = ["What is the capital of France?", "Count to five.", "Name a colour.", "Say hello in one word."]

    async def main(omni: AsyncOmni) -> None:
        requests = [chat(prompt, "text", "audio", max_tokens=24) for prompt in prompts]
        alone = [await omni.run(request) for request in requests]
        together: dict[int, Output] = {}

        async def one(i: int) -> None:
            together[i] = await omni.run(requests[i])

        async with trio.open_nursery() as nursery:
            for i in range(len(requests)):
                nursery.start_soon(one, i)
        for i, single in enumerate(alone):
            assert (single.text, single.pcm) == (together[i].text, together[i].pcm)

    run(main)


def _spoken(text: str) -> Request:
    return Request(task="speech", outputs=("audio",), params={"speech": Speech(text=text)})


def test_the_verbs_of_the_python_api(run: Run[None], tmp_path: Path) -> None:
    async def main(omni: AsyncOmni) -> None:
        spoken = await omni.speak("The capital of France is Paris.")
        file = tmp_path / "spoken.wav"
        file.write_bytes(spoken.wav())
        heard = await omni.transcribe(file, language="English", timestamps="segment", deadline_s=60)
        assert "capital of France" in heard.text
        assert 0 < heard.segments[-1]["end"] <= len(spoken.pcm) / 2 / spoken.sample_rate + 0.5
        question = [{"type": "audio", "audio": (await omni.speak("What is the capital of France?")).wav()}]
        answer = await omni.chat([{"role": "user", "content": question}], Sampling(temperature=0, max_tokens=20))
        assert "Paris" in answer.text
        with pytest.raises(OmniError) as refused:
            await omni.transcribe(file, language="Klingon")
        assert refused.value.info.param == "language"
        streamed: list[Event] = []
        async with omni.stream.chat(
            QUESTION, Sampling(temperature=0, max_tokens=8), modalities=("text", "audio")
        ) as it:
            streamed.extend([event async for event in it])
        assert pcm(streamed)

    run(main)
