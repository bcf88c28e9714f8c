"""More than can run, over HTTP and with real workers: who waits, who is refused, and what each is told."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.demo.server import Server, in_thread, serving
from tests.reported.stub_voice_client import CHAT, chat, connect, metric

pytestmark = pytest.mark.deadline(60)

SETTINGS = (
    "stages.writer.limits.max_inflight=1",
    "stages.writer.options.step_s=0.01",
    "limits.max_queued=4",
    "limits.max_per_key=4",
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    settings = [part for setting in SETTINGS for part in ("--set", setting)]
    keys = [part for key in ("red", "blue") for part in ("--api-key", key)]
    with serving(tmp_path_factory.mktemp("served"), "stub-voice", "--platform", "cpu", *settings, *keys) as it:
        yield it


def ask(server: Server, key: str, words: int, name: str = "", **more: Any) -> tuple[str, int, float, Any]:
    """Name, status, when it was answered, and what was said."""
    status, body = server.post(CHAT, chat("x", words, **more), authorization=f"Bearer {key}")
    return name, status, time.monotonic(), body


def waiting(server: Server) -> float:
    return metric(server, "omni_actors_num_requests_waiting")


@contextmanager
def held(server: Server) -> Iterator[None]:
    """Somebody has the only place meanwhile."""
    connection = connect(server)
    body = json.dumps(chat("x", 1_000_000, stream=True)).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer red\r\nContent-Length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body)
    server.wait_for(lambda: metric(server, "omni_actors_num_requests_running") == 1, 10)
    yield
    connection.close()


def test_the_full_line_is_said_at_once_with_a_time_to_come_back(server: Server) -> None:
    with held(server):
        asked = []
        for place, key in enumerate(("red", "red", "red", "blue")):
            asked.append(in_thread(lambda it=key: ask(server, it, 1)))  # type: ignore[misc]
            server.wait_for(lambda it=place: waiting(server) == it + 1, 10)  # type: ignore[misc]
        request = urllib.request.Request(
            f"{server.url}{CHAT}", b'{"messages": [{"role": "user", "content": "x"}]}', {"Authorization": "Bearer red"}
        )
        begun = time.monotonic()
        with pytest.raises(urllib.error.HTTPError) as full:
            urllib.request.urlopen(request, timeout=20)
        assert time.monotonic() - begun < 1.0
        assert full.value.code == 429
        assert 1 <= int(full.value.headers["Retry-After"]) <= 60
        assert b"max_per_key" in full.value.read()
        assert metric(server, "omni_actors_requests_refused_total", reason="key_limit") == 1
        # Of the key that has one in line another one comes in, in the place of the last of the key that has three.
        asked.append(in_thread(lambda: ask(server, "blue", 1)))
        server.wait_for(lambda: metric(server, "omni_actors_requests_refused_total", reason="queue_full") == 1, 10)
        assert asked[2]()[1] == 429
    assert [answer()[1] for answer in asked] == [200, 200, 429, 200, 200]
    server.wait_for(lambda: waiting(server) == 0, 10)


def test_what_is_sure_to_be_refused_is_refused_without_its_body(server: Server) -> None:
    with held(server):
        asked = [in_thread(lambda: ask(server, "red", 1)) for _ in range(3)]
        server.wait_for(lambda: waiting(server) == 3, 10)
        refused = metric(server, "omni_actors_requests_refused_total", reason="key_limit")
        for path in (CHAT, "/v1/completions", "/v1/audio/speech"):
            connection = connect(server)
            head = f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer red\r\nContent-Length: 40000000\r\n\r\n"
            connection.sendall(head.encode())
            assert connection.recv(1 << 16).startswith(b"HTTP/1.1 429 ")
            connection.close()
        assert metric(server, "omni_actors_requests_refused_total", reason="key_limit") == refused + 3
    assert [answer()[1] for answer in asked] == [200] * 3


def test_the_urgent_is_answered_first(server: Server) -> None:
    with held(server):
        asked = []
        for place, priority in enumerate((5, 0, -5)):
            asked.append(in_thread(lambda it=priority: ask(server, "blue", 5, str(it), priority=it)))  # type: ignore[misc]
            server.wait_for(lambda it=place: waiting(server) == it + 1, 10)  # type: ignore[misc]
    answers = sorted((answer() for answer in asked), key=lambda answer: answer[2])
    assert [(name, status) for name, status, _, _ in answers] == [("-5", 200), ("0", 200), ("5", 200)]


def test_the_time_in_line_is_part_of_the_deadline(server: Server) -> None:
    with held(server):
        begun = time.monotonic()
        _, status, at, body = ask(server, "blue", 1, timeout=0.3)
        assert (status, body["error"]["code"]) == (408, "deadline_exceeded")
        assert at - begun < 1.3
    assert metric(server, "omni_actors_requests_refused_total", reason="deadline") == 1
