"""What ``serve`` shows and answers while its stages load, and how it ends when it has to."""

from __future__ import annotations

import contextlib
import functools
import http.client
import io
import json
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import trio
from rich.console import Console
from tests.harness.ports import free_port

from omni_actors.entrypoints.loading import show_loading
from omni_actors.orchestrator import open_orchestrator
from omni_actors.pipelines.factory import resolve

COMMAND = [sys.executable, "-m", "omni_actors", "serve", "--platform", "cpu"]


@contextmanager
def starting(
    *arguments: str, model: str = "stub", before: Callable[[], object] | None = None
) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A server that has just been launched, and its port. Killed if the test leaves it running. ``before`` runs in its
    process before it."""
    port = free_port()
    command = [*COMMAND, model, "--port", str(port), *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=before
    ) as process:
        try:
            yield process, port
        finally:
            process.kill()


def get(port: int, path: str, seconds: float = 20) -> tuple[int, bytes]:
    """A request, tried again until the port listens."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read()
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        finally:
            connection.close()


def until_it_takes_no_more(port: int) -> None:
    """Until no new connection is taken: the first signal has been heard."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            return
    raise AssertionError("it still takes connections")


@pytest.mark.deadline(60)
def test_live_before_ready() -> None:
    """The port answers while a stage loads; the URL is printed when all are ready."""
    with starting("--set", "stages.c.options.load_s=3") as (process, port):
        assert get(port, "/live")[0] == 200
        status, body = get(port, "/ready")
        assert (status, json.loads(body)["status"]) == (503, "loading")
        status, body = get(port, "/health")
        assert status == 503
        assert "c" in json.loads(body)["unavailable"]
        assert process.stdout is not None
        assert re.match(rf"Serving stub on http://127.0.0.1:{port} \(ready in ", process.stdout.readline())
        assert get(port, "/ready")[0] == get(port, "/health")[0] == 200


@pytest.mark.deadline(60)
def test_a_signal_while_loading_ends_it() -> None:
    with starting("--set", "stages.c.options.load_s=60") as (process, port):
        assert get(port, "/live")[0] == 200
        process.send_signal(signal.SIGINT)
        assert process.wait(3) == 0


@pytest.mark.deadline(60)
@pytest.mark.parametrize("nohup", [False, True], ids=["closed", "nohup"])
def test_a_terminal_that_is_closed_drains_unless_that_is_ignored(nohup: bool) -> None:
    """An answer that is under way comes to its end either way."""
    ignore = functools.partial(signal.signal, signal.SIGHUP, signal.SIG_IGN) if nohup else None
    with starting("--set", "stages.writer.options.step_s=0.1", model="stub-voice", before=ignore) as (process, port):
        assert process.stdout is not None
        assert select.select([process.stdout], [], [], 30)[0]
        body = b'{"prompt":"one two three four five six seven eight","stream":true}'
        with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
            client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            said = client.recv(65536)
            assert said.startswith(b"HTTP/1.1 200 ")
            process.send_signal(signal.SIGHUP)
            while b"[DONE]" not in said:
                part = client.recv(65536)
                assert part, said
                said += part
        if nohup:
            assert get(port, "/live")[0] == 200
            assert process.poll() is None
        else:
            assert process.wait(20) == 0


@pytest.mark.deadline(60)
def test_a_second_signal_does_not_wait() -> None:
    """A client in the middle of its body holds the first signal's end for a while, not the second's."""
    with starting() as (process, port):
        assert process.stdout is not None
        assert select.select([process.stdout], [], [], 30)[0]
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{")
            assert get(port, "/live")[0] == 200
            process.send_signal(signal.SIGTERM)
            until_it_takes_no_more(port)
            process.send_signal(signal.SIGTERM)
            assert process.wait(1.5) == 0  # less than the 2 s that connections get


@pytest.mark.deadline(60)
def test_a_second_signal_does_not_wait_for_a_client_that_does_not_read() -> None:
    with starting() as (process, port):
        assert process.stdout is not None
        assert select.select([process.stdout], [], [], 30)[0]
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", port))
            client.settimeout(1)
            with pytest.raises(TimeoutError):  # it takes no more questions: an answer waits for its reader
                while True:
                    client.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 100)
            process.send_signal(signal.SIGTERM)
            until_it_takes_no_more(port)
            began = time.monotonic()
            process.send_signal(signal.SIGTERM)
            process.wait(12)
            assert time.monotonic() - began < 10


def test_an_idle_connection_does_not_hold_the_end() -> None:
    with starting() as (process, port):
        assert process.stdout is not None
        assert select.select([process.stdout], [], [], 30)[0]
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        connection.request("GET", "/live")
        assert connection.getresponse().read()
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(15) == 0
        assert time.monotonic() - began < 6  # not the 30 s of limits.drain_s
        connection.close()


@pytest.mark.deadline(60)
def test_with_everything_open_it_ends_in_time_and_tells_its_clients() -> None:
    """An idle connection, a request in a worker that is deep in a step, a stalled reader, a body that does not come."""
    settings = ("--set", "limits.drain_s=1.5", "--set", "stages.writer.options.step_s=20")
    with starting(*settings, model="stub-voice") as (process, port):
        assert process.stdout is not None
        assert select.select([process.stdout], [], [], 30)[0]
        idle, running, stalled, slow = [socket.create_connection(("127.0.0.1", port)) for _ in range(4)]
        idle.sendall(b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n")
        assert idle.recv(65536).startswith(b"HTTP/1.1 200 ")
        body = b'{"prompt":"hello"}'
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
        running.sendall(head + body)
        slow.sendall(head + body[:-1])
        stalled.setblocking(False)
        with contextlib.suppress(BlockingIOError):  # until an answer waits for its reader
            while True:
                stalled.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 100)
        deadline = time.monotonic() + 10
        while b'omni_actors_num_requests_running{task="completion"} 1.0' not in get(port, "/metrics")[1]:
            assert time.monotonic() < deadline
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(15) == 0
        assert time.monotonic() - began < 1.5 + 2
        for client in (running, slow):
            client.settimeout(2)
            assert client.recv(65536).startswith((b"HTTP/1.1 503 ", b"HTTP/1.1 408 ")), client
        assert idle.recv(1) == b""
        for client in (idle, running, stalled, slow):
            client.close()


async def test_a_terminal_shows_a_line_per_stage() -> None:
    plan = resolve("stub", overrides=["stages.b.options.load_s=0.5"])
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=100)
    async with open_orchestrator(plan) as orchestrator:
        with trio.fail_after(20):
            await show_loading(orchestrator, plan, console)
    for stage in plan.stages:
        assert stage.name in screen.getvalue()
    assert "loading nothing" in screen.getvalue()
