"""``serve`` as an operator starts and stops it."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner

from omni_actors.entrypoints.cli import cli


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
def test_a_unix_socket_and_a_limit_leave_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "door"
    command = [sys.executable, "-m", "omni_actors", "serve", "stub", "--platform", "cpu", "--uds", str(path)]
    with subprocess.Popen([*command, "--limit", "keep_alive_s=0.2"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert f"Serving stub on unix:{path} " in process.stdout.readline()
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(10)
            client.connect(str(path))
            client.sendall(b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n")
            assert client.recv(65536).startswith(b"HTTP/1.1 200 ")
            assert client.recv(65536) == b""  # idle for longer than its limit
        listed = CliRunner().invoke(cli, ["replicas", "list", "--uds", str(path), "--json"])
        assert {it["state"] for it in json.loads(listed.output)} == {"ready"}
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    assert not path.exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--limit", "conections=3"], "connections"),
        (["--limit", "connections=many"], "takes a number"),
        (["--limit", "connections=0"], "takes a positive number"),
        (["--limit", "write_s=nan"], "takes a positive number"),
        (["--limit", "write_s=3", "--server", "hypercorn"], "builtin"),
        (["--ssl-keyfile", __file__], "--ssl-certfile"),
        (["--uds", "door", "--port", "8000"], "--uds excludes --port"),
        (["--uds", "door", "--host", "::"], "--uds excludes --host"),
        (["--host", ""], "an address or name is needed"),
    ],
)
def test_what_cannot_be_is_said_at_once(arguments: list[str], said: str) -> None:
    done = CliRunner().invoke(cli, ["serve", "stub", *arguments])
    assert done.exit_code == 2
    assert said in done.output


@pytest.mark.deadline(60)
def test_several_hosts_are_all_said_and_served() -> None:
    """The line says every address. One that cannot be bound is named in one line."""
    command = [sys.executable, "-m", "omni_actors", "serve", "stub", "--platform", "cpu", "--host", "127.0.0.1"]
    command += ["--host", "127.0.0.2", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        said = re.match(
            r"Serving stub on (http://127.0.0.1:(\d+)) and (http://127.0.0.2:\2) ", process.stdout.readline()
        )
        assert said is not None
        for url in (said[1], said[3]):
            assert get(url, "/ready")[0] == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        assert f"listening on {said[1]} and {said[3]}" in process.stderr.read()
    done = subprocess.run([*command, "--host", "192.0.2.1"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert re.search(r"^Error: Cannot listen on 192\.0\.2\.1:\d+: Cannot assign requested address", done.stderr, re.M)


@pytest.mark.deadline(60)
def test_probes_are_answered_while_64_clients_drip_bodies() -> None:
    """A byte a second each, on all connections that the server takes."""
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\nContent-Type: application/json\r\n\r\n"
    with serving("--limit", "connections=64") as (_, url), contextlib.ExitStack() as stack:
        port = urlsplit(url).port
        drips = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(64)]
        for drip in drips:
            drip.sendall(head)
        for byte in b'{"p':
            for drip in drips:
                drip.sendall(bytes([byte]))
            for path in ("/live", "/ready", "/health"):
                began = time.monotonic()
                assert get(url, path)[0] == 200
                assert time.monotonic() - began < 1
        assert get(url, "/v1/models")[0] == 200  # when the slowest one has made way


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
