"""The server is killed by SIGKILL; no process and no shared memory of it stays."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from tests.demo.server import serving, wait_gone

from .stub_voice_client import CHAT, chat, connect, running


@pytest.mark.deadline(60)
def test_sigkill_of_the_server_leaves_no_process_and_no_shared_memory(tmp_path: Path) -> None:
    before = set(os.listdir("/dev/shm"))
    with serving(tmp_path, "stub-voice", "--platform", "cpu", "--set", "stages.writer.options.step_s=0.01") as server:
        workers = server.workers()
        assert set(workers) == {"writer", "speaker", "media"}
        connection = connect(server)
        body = json.dumps(chat("hello", 100_000, stream=True)).encode()
        connection.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        server.wait_for(lambda: running(server, "writer") == 1, 10)
        server.process.send_signal(signal.SIGKILL)
        server.process.wait(5)
        assert wait_gone(list(workers.values()), 5) == []
        connection.close()
    assert set(os.listdir("/dev/shm")) <= before
