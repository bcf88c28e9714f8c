"""``serve`` as an operator starts and stops it."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest


@contextmanager
def serving(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server of the stub pipeline; its process and URL. It is killed if the test leaves it running."""
    command = [sys.executable, "-m", "omni_actors", "serve", "stub", "--platform", "cpu", "--port", "0", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        said = process.stdout.readline()
        found = re.match(r"Serving (\S+) on (http://\S+)", said)
        assert found is not None, said
        yield process, found[2]
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def get(url: str, path: str, **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=20)
    try:
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


@pytest.mark.deadline(60)
def test_it_says_where_it_serves_and_ends_in_order_on_a_signal() -> None:
    with serving("--served-model-name", "parrot") as (process, url):
        assert get(url, "/ready")[0] == 200
        status, body = get(url, "/v1/models")
        assert (status, [model["id"] for model in json.loads(body)["data"]]) == (200, ["parrot"])
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0


@pytest.mark.deadline(60)
def test_keys_guard_it() -> None:
    with serving("--api-key", "one", "--api-key", "two") as (_, url):
        assert get(url, "/v1/models")[0] == 401
        assert get(url, "/v1/models", Authorization="Bearer two")[0] == 200


@pytest.mark.deadline(60)
def test_a_taken_port_is_one_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "omni_actors", "serve", "stub", "--platform", "cpu", "--port", port]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert f"Error: Cannot listen on 127.0.0.1:{port}" in done.stderr
    assert "Traceback" not in done.stderr
