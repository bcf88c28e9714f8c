"""A real ``python -m omni_actors serve`` of the demo, for tests that are clients of it."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.harness.ports import free_port

from omni_actors.worker.compiled import FOLDERS


class Server:
    """The serving process and what it says."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
        self.process = process
        self.port = port
        self.log = log
        self.url = f"http://127.0.0.1:{port}"

    def get(self, path: str) -> tuple[int, Any]:
        return self.call("GET", path, None)

    def post(self, path: str, body: Any, **headers: str) -> tuple[int, Any]:
        return self.call("POST", path, body, **headers)

    def call(self, method: str, path: str, body: Any, **headers: str) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json"} | {name.replace("_", "-"): it for name, it in headers.items()}
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return response.status, _decoded(response.read())
        except urllib.error.HTTPError as error:
            return error.code, _decoded(error.read())

    def workers(self) -> dict[str, int]:
        """pid of each stage's worker, by the name that its log lines carry."""
        found: dict[str, int] = {}
        for stage, pid in re.findall(r"(\w+)#0@\d+ is ready \(pid (\d+)\)", self.log.read_text()):
            found[stage] = int(pid)
        return found

    def wait_for(self, condition: Callable[[], bool], seconds: float) -> None:
        """Poll the server from outside, as an operator's script would."""
        deadline = time.monotonic() + seconds
        while not condition():
            self.assert_runs()
            assert time.monotonic() < deadline, self.log.read_text()[-3000:]
            time.sleep(0.05)
        self.assert_runs()

    def assert_runs(self) -> None:
        """Raise AssertionError with the end of the log if the serving process has ended."""
        assert self.process.poll() is None, self.log.read_text()[-3000:]

    def healthy(self) -> bool:
        try:
            return self.get("/health")[0] == 200
        except OSError:
            return False


def _decoded(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return data


@contextmanager
def serving(
    tmp: Path,
    *arguments: str,
    python: Path | str = sys.executable,
    environment: Mapping[str, str] | None = None,
    start_s: float = 90,
) -> Iterator[Server]:
    """Start a server, wait until every stage is ready, and stop it as an operator would. ``python`` is that of another
    environment, ``environment`` what it gets on top of this process's (without the variables that torch sets
    in a process which uses it)."""
    port = free_port()
    log = tmp / "server.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [str(python), "-m", "omni_actors", "serve", "--port", str(port), *arguments],
            stdout=out,
            stderr=subprocess.STDOUT,
            cwd=tmp,  # not the repository: only what is installed may be used
            env={name: it for name, it in os.environ.items() if name not in FOLDERS} | dict(environment or {}),
        )
    server = Server(process, port, log)
    try:
        server.wait_for(server.healthy, start_s)
        yield server
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(5)
            raise


def wait_gone(pids: list[int], seconds: float) -> list[int]:
    """The pids that are still alive after so many seconds."""
    deadline = time.monotonic() + seconds
    left = []
    for pid in pids:
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        with os.fdopen(fd):
            if not select.select([fd], [], [], max(0.0, deadline - time.monotonic()))[0]:
                left.append(pid)
    return left


def in_thread(call: Callable[[], Any]) -> Callable[[], Any]:
    """Run a blocking call beside the test; calling the result waits for it and gives its value."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(call()), daemon=True)
    thread.start()

    def result() -> Any:
        thread.join(60)
        assert results, "the call did not return"
        return results[0]

    return result
