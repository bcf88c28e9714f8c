"""Clients leave before their answer is complete; the work stops at its next step, and no memory or process of it
stays."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
from typing import Any

import pytest
from tests.demo.server import Server

from .stub_voice_client import CHAT, SAY, answer_of, chat, connect, expected_text, metric, running, say

SETTINGS = ("stages.writer.options.step_s=0.005", "stages.speaker.options.step_s=0.005")

pytestmark = pytest.mark.deadline(120)

BODIES: dict[str, tuple[str, dict[str, Any], str]] = {
    "streamed": (CHAT, chat("hello", 100_000, stream=True), "writer"),
    "whole": (CHAT, chat("hello", 100_000), "writer"),
    "sound": (SAY, say("word " * 20_000), "speaker"),
}


def begin(server: Server, path: str, body: dict[str, Any]) -> socket.socket:
    sock = connect(server)
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    sock.sendall(head.encode() + data)
    return sock


@pytest.mark.parametrize("kind", BODIES)
@pytest.mark.parametrize("way", ["reset", "close", "unread"])
def test_who_leaves_stops_its_work(server: Server, kind: str, way: str) -> None:
    """By a reset, by a close, and by a close with unread data in the way (the server learns of it by a failed send)."""
    path, body, stage = BODIES[kind]
    errors = server.log.read_text().count("ERROR")
    sock = begin(server, path, body)
    server.wait_for(lambda: running(server, stage) == 1, 10)
    if kind != "whole" and way != "unread":
        assert sock.recv(10)
    if way == "close":
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\0" * 8)
        sock.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while sock.recv(1 << 16):
                pass
    sock.close()
    server.wait_for(lambda: running(server, stage) == 0, 5)
    assert answer_of(server.post(CHAT, chat("next", 4))) == expected_text("next", 4)
    assert server.log.read_text().count("ERROR") == errors
    assert metric(server, "omni_actors_num_requests_running") == 0


def test_200_dropped_streams_leave_nothing(server: Server) -> None:
    files, descriptors = set(os.listdir("/dev/shm")), len(os.listdir(f"/proc/{server.process.pid}/fd"))
    for i in range(200):
        path, body, _ = BODIES[("streamed", "sound", "whole")[i % 3]]
        sock = begin(server, path, body | ({"modalities": ["text"]} if path == CHAT else {}))
        if i % 3 != 2:
            sock.recv(10)
        sock.close()

    def idle() -> bool:
        return (
            running(server, "writer") == running(server, "speaker") == 0
            and metric(server, "omni_actors_num_requests_running") == 0
            and metric(server, "omni_actors_stage_jobs") == 0
            and metric(server, "omni_actors_stage_arena_used_bytes") == 0
            and metric(server, "omni_actors_stage_credits_outstanding") == 0
        )

    server.wait_for(idle, 20)
    assert set(os.listdir("/dev/shm")) <= files
    server.wait_for(lambda: len(os.listdir(f"/proc/{server.process.pid}/fd")) <= descriptors + 2, 10)


def test_a_producer_that_dies_before_its_consumer_reads_leaves_nothing(server: Server) -> None:
    speaker, writer = (server.workers()[name] for name in ("speaker", "writer"))
    os.kill(speaker, signal.SIGSTOP)
    sock = begin(
        server, CHAT, chat("hello", 30, modalities=["text", "audio"], audio={"voice": "tone", "format": "wav"})
    )
    server.wait_for(lambda: running(server, "writer") == 1 or metric(server, "omni_actors_stage_jobs") > 0, 10)
    os.kill(writer, signal.SIGKILL)
    sock.close()
    os.kill(speaker, signal.SIGCONT)
    server.wait_for(server.healthy, 20)
    server.wait_for(lambda: metric(server, "omni_actors_stage_jobs") == 0, 10)
    server.wait_for(lambda: metric(server, "omni_actors_stage_inbox_used_bytes") == 0, 10)
