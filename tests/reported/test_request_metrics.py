"""Metrics of requests: usage is counted once, each outcome once, and no more requests run than there are slots."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.demo.server import Server, in_thread

from .stub_voice_client import CHAT, answer_of, chat, connect, expected_text, metric

SLOTS, QUEUED = 2, 10
WORDS = 40

SETTINGS = (f"stages.writer.limits.max_inflight={SLOTS}", "stages.writer.options.step_s=0.02")

pytestmark = pytest.mark.deadline(60)

SPOKEN = {"modalities": ["text", "audio"], "audio": {"voice": "tone", "format": "pcm16"}}
USAGE = {
    "prompt_tokens": 1,
    "completion_tokens": WORDS,
    "total_tokens": 1 + WORDS,
    "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
    "completion_tokens_details": {"text_tokens": WORDS, "audio_tokens": 0, "reasoning_tokens": 0},
}
"""The writer reads one token and makes one of each word; the speaker counts seconds."""


def outcomes(server: Server) -> dict[str, float]:
    names = ("completed", "failed", "cancelled")
    return {it: metric(server, "omni_actors_requests_total", task="chat", outcome=it) for it in names}


def gauges(server: Server) -> dict[str, float]:
    names = ("num_requests_running", "num_requests_waiting", "waiting_request_bytes", "stage_requests_in_flight")
    return {it: metric(server, f"omni_actors_{it}") for it in (*names, "stage_running")}


def idle(server: Server) -> bool:
    return not any(gauges(server).values())


def events(data: bytes) -> list[Any]:
    lines = [line[6:] for line in data.split(b"\n\n") if line]
    assert lines[-1] == b"[DONE]"
    return [json.loads(line) for line in lines[:-1]]


@pytest.mark.parametrize("more", [{}, SPOKEN], ids=["text", "text and audio"])
def test_usage_is_what_it_is_defined_as_once(server: Server, more: dict[str, Any]) -> None:
    counted = {it: metric(server, f"omni_actors_{it}_total") for it in ("prompt_tokens", "generation_tokens")}
    asked = chat("count", WORDS, stream=True, stream_options={"include_usage": True}, **more)
    status, data = server.post(CHAT, asked)
    assert status == 200
    *others, last = events(data)
    assert all(event["usage"] is None for event in others)
    assert (last["choices"], last["usage"]) == ([], USAGE)
    status, whole = server.post(CHAT, chat("count", WORDS, **more))
    assert whole["usage"] == USAGE
    status, data = server.post(CHAT, chat("count", WORDS, stream=True, **more))
    assert not any("usage" in event for event in events(data))
    assert metric(server, "omni_actors_prompt_tokens_total") == counted["prompt_tokens"] + 3
    assert metric(server, "omni_actors_generation_tokens_total") == counted["generation_tokens"] + 3 * WORDS


@pytest.mark.parametrize("stream", [False, True])
def test_an_abort_is_counted_once_and_leaves_no_gauge(server: Server, stream: bool) -> None:
    before = outcomes(server)
    connection = connect(server)
    body = json.dumps(chat("go on", 100_000, stream=stream)).encode()
    connection.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    server.wait_for(lambda: gauges(server)["num_requests_running"] == 1, 10)
    connection.close()
    server.wait_for(lambda: idle(server), 10)
    assert outcomes(server) == before | {"cancelled": before["cancelled"] + 1}
    assert answer_of(server.post(CHAT, chat("next", 3))) == expected_text("next", 3)


def test_no_more_run_than_there_is_room_for_and_the_others_wait(server: Server) -> None:
    before = outcomes(server)
    answers = [in_thread(lambda: server.post(CHAT, chat("in turn", WORDS))) for _ in range(SLOTS + QUEUED)]
    waited: set[float] = set()
    ran: set[float] = set()

    def look() -> bool:
        found = gauges(server)
        waited.add(found["num_requests_waiting"])
        ran.add(found["num_requests_running"])
        assert found["stage_running"] <= SLOTS
        return idle(server) and len(ran) > 1

    server.wait_for(look, 40)
    assert max(ran) == SLOTS
    assert max(waited) == QUEUED
    assert [answer_of(answer()) for answer in answers] == [expected_text("in turn", WORDS)] * (SLOTS + QUEUED)
    assert outcomes(server) == before | {"completed": before["completed"] + SLOTS + QUEUED}
    assert metric(server, "omni_actors_request_queue_time_seconds_count", task="chat") >= SLOTS + QUEUED


def test_a_mass_abort_empties_every_gauge_running_and_waiting(server: Server) -> None:
    before = outcomes(server)
    body = json.dumps(chat("all of them", 100_000, stream=True)).encode()
    connections = [connect(server) for _ in range(SLOTS + QUEUED)]
    for connection in connections:
        connection.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    server.wait_for(lambda: gauges(server)["num_requests_waiting"] == QUEUED, 10)
    for connection in connections:
        connection.close()
    server.wait_for(lambda: idle(server), 10)
    after = outcomes(server)
    # Those in line were never admitted; they are counted as what they were: left by their clients.
    assert after == before | {"cancelled": before["cancelled"] + SLOTS + QUEUED}
