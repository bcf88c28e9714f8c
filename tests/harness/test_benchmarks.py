"""The servers that a benchmark compares answer."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from http.client import HTTPConnection
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
ASKED = {"id": "one", "input": "The quick brown fox", "max_tokens": 7}


@pytest.mark.parametrize("kind", ["direct", "quart", "hypercorn"])
def test_a_server_of_http_servers_answers(kind: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = os.environ | {"PYTHONPATH": str(BENCHMARKS)}
    server = subprocess.Popen([sys.executable, "-m", "httpload.on_trio", kind, str(port)], env=environment)
    try:
        deadline = time.monotonic() + 20
        while True:
            client = HTTPConnection("127.0.0.1", port, timeout=5)
            try:
                client.request("POST", "/json", json.dumps(ASKED), {"content-type": "application/json"})
                break
            except ConnectionRefusedError:  # it has still to listen
                assert server.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.05)
        response = client.getresponse()
        assert (response.status, json.loads(response.read())) == (200, {"id": "one", "tokens": 7})
        client.close()
    finally:
        server.kill()
        server.wait()
