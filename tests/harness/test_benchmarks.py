"""The servers that a benchmark compares answer."""

from __future__ import annotations

import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from http.client import HTTPConnection
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.append(str(BENCHMARKS))
idle = importlib.import_module("idle")
ASKED = {"id": "one", "input": "The quick brown fox", "max_tokens": 7}


SERVERS = {kind: ["httpload.on_trio", kind] for kind in ("direct", "quart", "hypercorn")}
SERVERS["fastapi"] = ["httpload.on_asyncio"]
SPINS = "while True: pass"
RESTS = "import time; time.sleep(60)"
LEAVES_ONE = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {RESTS!r}], stdout=-3); print('done')"


@pytest.mark.parametrize("kind", SERVERS)
def test_a_server_of_http_servers_answers_and_rests_when_its_clients_have_left(kind: str) -> None:
    """Also those of a saturated stream, which have been sent more than they have read."""
    if kind == "fastapi":
        pytest.importorskip("fastapi")
        pytest.importorskip("uvicorn")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = os.environ | {"PYTHONPATH": str(BENCHMARKS)}
    server = subprocess.Popen([sys.executable, "-m", *SERVERS[kind], str(port)], env=environment)
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
        client.request("POST", "/saturated", json.dumps(ASKED), {"content-type": "application/json"})
        for _ in range(200):
            assert client.sock.recv(65536)
        client.close()
        idle.wait_idle(server.pid, kind, within_s=3)
    finally:
        server.kill()
        server.wait()


def test_who_does_not_rest_is_found() -> None:
    """A process, or one below it."""
    for program in (
        SPINS,
        f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SPINS!r}])",
    ):
        spinning = subprocess.Popen([sys.executable, "-c", program], start_new_session=True)
        try:
            with pytest.raises(idle.NotIdle, match=r"uses .* of a core with nothing to do"):
                until_it_spins(spinning.pid)
        finally:
            os.killpg(spinning.pid, signal.SIGKILL)
            spinning.wait()
    resting = subprocess.Popen([sys.executable, "-c", RESTS])
    try:
        idle.wait_idle(resting.pid, "it", within_s=10)
    finally:
        resting.kill()
        resting.wait()


def until_it_spins(pid: int) -> None:
    deadline = time.monotonic() + 20
    while idle.busy(pid) < 0.2:
        assert time.monotonic() < deadline
    idle.wait_idle(pid, "it", within_s=0)


def test_a_peer_that_leaves_processes_behind_is_found_and_they_are_ended() -> None:
    environment = dict(os.environ)
    assert idle.run_alone([sys.executable, "-c", "print('done')"], environment, "/") == "done\n"
    with pytest.raises(idle.NotIdle, match="left processes behind") as caught:
        idle.run_alone([sys.executable, "-c", LEAVES_ONE], environment, "/")
    (left,) = json.loads(str(caught.value).rpartition(": ")[2])
    deadline = time.monotonic() + 10
    while Path(f"/proc/{left}").exists() and Path(f"/proc/{left}/stat").read_text().rpartition(") ")[2][0] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.01)
    with pytest.raises(subprocess.CalledProcessError):
        idle.run_alone([sys.executable, "-c", "raise SystemExit(3)"], environment, "/")
