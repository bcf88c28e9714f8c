"""What bench measures, against a server whose delays are known."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from omni_actors.entrypoints.bench.client import Client
from omni_actors.entrypoints.bench.load import Level, Run, one_request, run_level
from omni_actors.entrypoints.bench.sample import Sample
from omni_actors.entrypoints.bench.workloads import WORKLOADS, Workload
from omni_actors.entrypoints.commands.target import Target

SLACK = 1.0
"""Seconds that a busy machine may add to a delay."""


def workload(name: str, **settings: Any) -> Workload:
    return WORKLOADS[name](model="m", prompts=["one", "two", "three"], **settings)


async def ask(server: Any, name: str, **settings: Any) -> Sample:
    client = Client(Target.parse(server.url))
    try:
        return await one_request(client, workload(name, **settings), 0, 10)
    finally:
        await client.aclose()


async def test_chat_times_and_usage(serve: Callable[..., Any], sse: Any) -> None:
    server = serve(
        [
            (0.2, sse.event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})),
            (0.1, sse.text("Hel")),
            (0.2, sse.text("lo")),
            (0.2, sse.text("", finish="stop")),
            (0.0, sse.usage(7, 5)),
            (0.1, sse.done),
        ]
    )
    sample = await ask(server, "chat", max_tokens=9)
    assert sample.error is None
    assert sample.ttft is not None
    assert 0.3 <= sample.ttft < 0.3 + SLACK  # the first chunk has no text
    assert sample.tpot is not None
    assert 0.19 / 4 <= sample.tpot < (0.2 + SLACK) / 4
    assert 0.8 <= sample.e2el < 0.8 + SLACK
    assert (sample.prompt_tokens, sample.tokens) == (7, 5)
    assert sample.ttfp is sample.rtf is sample.underrun is None
    assert server.bodies == [
        {
            "model": "m",
            "messages": [{"role": "user", "content": "one"}],
            "max_tokens": 9,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ]


async def test_chat_with_audio_times_the_first_packet_and_the_underrun(serve: Callable[..., Any], sse: Any) -> None:
    server = serve(
        [
            (0.1, sse.audio(0.0, transcript="Hello.")),
            (0.2, sse.audio(0.25)),
            (0.75, sse.audio(1.0)),  # due 0.25 s after the first packet, comes 0.5 s too late
            (0.1, sse.audio(1.0)),  # in time
            (0.0, sse.text("", finish="stop") + sse.usage(7, 5) + sse.done),
        ]
    )
    sample = await ask(server, "chat-audio")
    assert sample.error is None
    assert sample.ttft is not None
    assert sample.ttfp is not None
    assert 0.1 <= sample.ttft < sample.ttfp
    assert 0.3 <= sample.ttfp < 0.3 + SLACK
    assert sample.audio_seconds == pytest.approx(2.25)
    assert sample.underrun is not None
    assert 0.45 <= sample.underrun < 0.5 + SLACK
    assert sample.rtf == pytest.approx(sample.e2el / 2.25)
    assert server.bodies[0]["modalities"] == ["text", "audio"]
    assert server.bodies[0]["audio"] == {"voice": "alloy", "format": "pcm16"}


async def test_speech_bytes_are_timed_as_they_come(serve: Callable[..., Any]) -> None:
    # 24,001 samples, cut inside a sample.
    server = serve([(0.1, bytes(24_001)), (0.2, bytes(24_001))], content_type=b"audio/pcm")
    sample = await ask(server, "speech")
    assert sample.error is None
    assert sample.audio_seconds == pytest.approx(24_001 / 24_000)
    assert sample.ttfp is not None
    assert 0.1 <= sample.ttfp < 0.1 + SLACK
    assert 0.3 <= sample.e2el < 0.3 + SLACK


async def test_speech_events(serve: Callable[..., Any], sse: Any) -> None:
    delta = {"type": "speech.audio.delta", "audio": "AAAA" * 1600}
    done = {"type": "speech.audio.done", "usage": {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}}
    sample = await ask(serve([(0, sse.event(delta)), (0, sse.event(done))]), "speech-sse")
    assert sample.error is None
    assert sample.audio_seconds == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("name", "make", "reason"),
    [
        ("chat", lambda s: [(0, s.text("Hi"))], "without a finish_reason"),
        ("chat", lambda s: [(0, s.text("Hi", finish="stop"))], r"without \[DONE\]"),
        ("chat", lambda s: [(0, s.text("Hi")), (0, None)], "short stream"),
        ("chat", lambda s: [(0, s.text("Hi", finish="stop") + s.done[:-8])], "inside an event"),
        ("chat", lambda s: [(0, s.text("", finish="stop") + s.usage(1, 1) + s.done)], "no text came"),
        ("chat", lambda s: [(0, s.text("Hi", finish="stop") + s.done)], "the reply has no usage"),
        ("chat", lambda s: [(0, s.text("Hi", finish="stop") + s.usage(1, 0) + s.done)], "usage cannot be right"),
        ("chat", lambda s: [(0, s.text("Hi", finish="stop") + s.usage(1, 1, 3) + s.done)], "usage does not add up"),
        ("chat", lambda s: [(0, s.text("Hi")), (0, s.event({"error": {"message": "stage died"}}))], "stage died"),
        ("chat", lambda s: [(0, b"data: nonsense\n\n")], "not JSON"),
        ("chat-audio", lambda s: [(0, s.text("Hi", finish="stop") + s.usage(1, 1) + s.done)], "no audio came"),
        ("chat", lambda s: [(0, s.event({"choices": "none"}))], "malformed reply"),
        ("chat-audio", lambda s: [(0, s.event({"choices": [{"delta": {"audio": {"data": "A"}}}]}))], "malformed reply"),
        ("speech-sse", lambda s: [(0, s.event({"type": "speech.audio.delta"}))], "malformed reply"),
        ("speech", lambda s: [], "no audio came"),
        ("speech", lambda s: [(0, b"123")], "inside a sample"),
        ("speech", lambda s: [(0, b"1234"), (0, None)], "short stream"),
        ("speech-sse", lambda s: [(0, s.event({"type": "speech.audio.delta", "audio": "AAAA"}))], "speech.audio.done"),
    ],
)
async def test_a_reply_that_is_not_whole_counts_as_failed(
    serve: Callable[..., Any], sse: Any, name: str, make: Callable[[Any], Any], reason: str
) -> None:
    sample = await ask(serve(make(sse)), name)
    assert sample.error is not None
    assert re.search(reason, sample.error), sample.error


async def test_an_error_status_is_reported_with_its_message(serve: Callable[..., Any]) -> None:
    body = b'{"error": {"message": "no such model", "type": "invalid_request_error"}}'
    server = serve([(0, body)], status=b"404 Not Found", content_type=b"application/json")
    sample = await ask(server, "chat")
    assert sample.error == "HTTP 404: no such model"


async def test_a_server_that_is_not_there_is_a_failed_request() -> None:
    client = Client(Target.parse("http://127.0.0.1:1"))
    sample = await one_request(client, workload("chat"), 0, 10)
    assert sample.error is not None
    assert "cannot connect to 127.0.0.1:1" in sample.error


async def test_a_request_without_end_stops_at_its_limit(serve: Callable[..., Any], sse: Any) -> None:
    server = serve([(0, sse.text("Hi")), (60, sse.done)])
    client = Client(Target.parse(server.url))
    sample = await one_request(client, workload("chat"), 0, 0.2)
    assert sample.error == "no end within 0.2 s"


async def test_without_usage_text_deltas_count(serve: Callable[..., Any], sse: Any) -> None:
    server = serve([(0, sse.text("a") + sse.text("b") + sse.text("c", finish="stop") + sse.done)])
    sample = await ask(server, "chat", usage=False)
    assert (sample.error, sample.tokens) == (None, 3)
    assert "stream_options" not in server.bodies[0]


async def load(server: Any, level: Level, requests: int) -> Run:
    client = Client(Target.parse(server.url))
    try:
        return await run_level(client, workload("chat"), level, requests)
    finally:
        await client.aclose()


async def test_concurrency_is_kept_and_connections_are_reused(serve: Callable[..., Any], sse: Any) -> None:
    whole = sse.text("Hi", finish="stop") + sse.usage(1, 1) + sse.done
    server = serve([(0.1, whole)])
    run = await load(server, Level(concurrency=4), 12)
    assert [sample.error for sample in run.samples] == [None] * 12
    assert server.in_flight_max == 4
    assert server.connections == 4
    assert 0.3 <= run.wall < 0.3 + SLACK
    asked = sorted(body["messages"][0]["content"] for body in server.bodies)
    assert asked == ["one"] * 4 + ["three"] * 4 + ["two"] * 4


async def test_a_rate_does_not_wait_for_answers(serve: Callable[..., Any], sse: Any) -> None:
    whole = sse.text("Hi", finish="stop") + sse.usage(1, 1) + sse.done
    server = serve([(1.0, whole)])
    run = await load(server, Level(rate=100), 10)
    assert [sample.error for sample in run.samples] == [None] * 10
    assert server.in_flight_max == 10
    assert run.wall < 1.0 + SLACK


async def test_a_kept_connection_that_the_server_closed_is_replaced(serve: Callable[..., Any], sse: Any) -> None:
    whole = sse.text("Hi", finish="stop") + sse.usage(1, 1) + sse.done
    server = serve([(0, whole)], close_after=True)
    run = await load(server, Level(concurrency=1), 3)
    assert [sample.error for sample in run.samples] == [None] * 3
    assert (server.connections, len(server.bodies)) == (3, 3)
