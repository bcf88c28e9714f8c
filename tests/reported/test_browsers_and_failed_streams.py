"""Browsers' preflights and errors are answered; failures before and after the first word of a stream are told apart."""

from __future__ import annotations

import json
import os
import signal

import pytest
from tests.demo.server import Server

from .stub_voice_client import CHAT, SAY, chat, connect, say

SETTINGS = ("limits.max_resumes=0", "limits.restart_delay_s=0.2", "stages.writer.options.step_s=0.02")

pytestmark = pytest.mark.deadline(60)

ORIGIN = "https://app.example"


def exchange(server: Server, head: str, body: bytes = b"") -> tuple[int, dict[str, str], bytes]:
    """One HTTP/1.1 exchange, as the bytes are; the connection is closed behind it."""
    with connect(server) as sock:
        sock.sendall(head.replace("\n", "\r\n").encode() + b"\r\n\r\n" + body)
        received = b""
        while piece := sock.recv(1 << 16):
            received += piece
    top, _, rest = received.partition(b"\r\n\r\n")
    lines = top.decode("latin-1").split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])}
    return int(lines[0].split()[1]), headers, rest


def asks(path: str, method: str = "GET", more: str = "") -> str:
    return f"{method} {path} HTTP/1.1\nHost: x\nOrigin: {ORIGIN}\nConnection: close{more}"


def test_a_preflight_says_what_is_allowed(server: Server) -> None:
    more = "\nAccess-Control-Request-Method: POST\nAccess-Control-Request-Headers: authorization, content-type"
    status, headers, _ = exchange(server, asks(CHAT, "OPTIONS", more))
    assert status == 204
    assert headers["access-control-allow-origin"] == "*"
    assert "POST" in headers["access-control-allow-methods"]
    assert headers["access-control-allow-headers"] == "authorization, content-type"


@pytest.mark.parametrize("path", ["/v1/models", "/v1/audio/voices", "//v1//models", "/v1/models/", "/health"])
def test_lists_are_there_also_with_more_slashes(server: Server, path: str) -> None:
    status, headers, body = exchange(server, asks(path))
    assert status == 200
    assert headers["access-control-allow-origin"] == "*"
    assert json.loads(body)


@pytest.mark.parametrize(
    ("path", "method", "status"),
    [("/v1/nothing", "GET", 404), ("/v1/models/no", "GET", 404), (CHAT, "GET", 405), (CHAT, "POST", 400)],
)
def test_errors_are_json_that_a_browser_may_read(server: Server, path: str, method: str, status: int) -> None:
    got, headers, body = exchange(server, asks(path, method, "\nContent-Length: 0" if method == "POST" else ""))
    assert got == status
    assert headers["access-control-allow-origin"] == "*"
    assert headers["content-type"].startswith("application/json")
    assert set(json.loads(body)["error"]) >= {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    ("path", "body"), [(CHAT, chat("!fail:writer", 5, stream=True)), (SAY, say("!fail:speaker one"))]
)
def test_a_failure_before_the_first_word_has_its_status(server: Server, path: str, body: dict[str, object]) -> None:
    status, error = server.post(path, body)
    assert status == 500
    assert "asked to fail" in error["error"]["message"]
    assert "Traceback" not in json.dumps(error)


def test_a_failure_in_the_midst_of_a_stream_is_said_in_it_and_ends_it_abnormally(server: Server) -> None:
    """No success marker, no end of the chunked body: a client cannot take it for whole."""
    body = json.dumps(chat("hello", 100_000, stream=True)).encode()
    with connect(server) as sock:
        head = (
            f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        sock.sendall(head.encode() + body)
        received = b""
        while received.count(b"data: ") < 4:
            received += sock.recv(1 << 16)
        os.kill(server.workers()["writer"], signal.SIGKILL)
        try:
            while piece := sock.recv(1 << 16):
                received += piece
        except ConnectionResetError:
            pass
    assert b'"code":"stage_died"' in received
    assert b"[DONE]" not in received
    assert b'"finish_reason":"' not in received
    assert not received.endswith(b"0\r\n\r\n")
    server.wait_for(server.healthy, 20)
