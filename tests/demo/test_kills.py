"""``kill -9`` of every worker of a served demo in turn, and of the server, over real HTTP.

Requests are not resumed here (test_resume.py): what a death itself does is seen.
"""

from __future__ import annotations

import base64
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .server import Server, in_thread, serving, wait_gone

pytestmark = [pytest.mark.weights, pytest.mark.slow, pytest.mark.deadline(180)]


@pytest.fixture(scope="module")
def server(demo_weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(
        tmp_path_factory.mktemp("kills"), "--set", "limits.restart_delay_s=0.5", "--set", "limits.max_resumes=0"
    ) as it:
        yield it


@pytest.fixture(scope="module")
def question(server: Server) -> str:
    """A spoken question, base64 of a WAV."""
    status, wav = server.post(
        "/v1/audio/speech",
        {"model": "omni-demo", "input": "What is the capital of France?", "voice": "heart", "response_format": "wav"},
    )
    assert status == 200
    return base64.b64encode(wav).decode()


def long_chat(question: str | None, *modalities: str) -> dict[str, Any]:
    content: Any = "Tell me a long story about a small robot."
    if question is not None:
        content = [{"type": "input_audio", "input_audio": {"data": question, "format": "wav"}}]
    body: dict[str, Any] = {
        "model": "omni-demo",
        "messages": [{"role": "user", "content": content}],
        "modalities": list(modalities),
        "max_tokens": 400,
        "ignore_eos": True,
    }
    if "audio" in modalities:
        body["audio"] = {"voice": "heart", "format": "wav"}
    return body


@pytest.mark.parametrize("stage", ["llm", "acoustic", "vocoder", "asr", "media"])
def test_a_killed_worker_fails_what_is_in_it_by_name_and_comes_back(server: Server, question: str, stage: str) -> None:
    victim = server.workers()[stage]
    # SIGSTOP holds the stage, so that the request is surely in it when it is killed.
    os.kill(victim, signal.SIGSTOP)
    spoken = stage in ("asr", "media")
    if stage == "media":  # a body with media is parsed there before there is a request
        lost = in_thread(lambda: server.post("/v1/chat/completions", long_chat(question, "text")))
    else:
        modalities = ("text",) if spoken or stage == "llm" else ("text", "audio")
        lost = in_thread(
            lambda: server.post("/v1/chat/completions", long_chat(question if spoken else None, *modalities))
        )
    other = None
    if stage != "llm":
        other = in_thread(lambda: server.post("/v1/chat/completions", long_chat(None, "text") | {"max_tokens": 40}))
    else:
        other = in_thread(
            lambda: server.post("/v1/audio/speech", {"model": "omni-demo", "input": "Hello.", "voice": "heart"})
        )
    server.wait_for(lambda: _in_flight(server) >= 1, 30)
    os.kill(victim, signal.SIGKILL)
    status, body = lost()
    assert status == 503, body
    assert body["error"]["code"] in ("stage_died", "stage_unavailable")
    assert stage in body["error"]["message"]
    assert other()[0] == 200
    server.wait_for(server.healthy, 60)
    assert server.workers()[stage] != victim
    assert server.post("/v1/chat/completions", long_chat(question, "text") | {"max_tokens": 8})[0] == 200
    spoken_answer = server.post("/v1/chat/completions", long_chat(None, "text", "audio") | {"max_tokens": 8})
    assert spoken_answer[0] == 200, spoken_answer


def _in_flight(server: Server) -> int:
    """Requests that the serving process has begun and not answered, by its own metric."""
    status, text = server.get("/metrics")
    assert status == 200
    for line in text.decode().splitlines():
        if line.startswith("omni_actors_http_requests_in_flight "):
            return int(float(line.rsplit(" ", 1)[1])) - 1  # this one
    raise AssertionError("no metric of requests in flight")


def test_a_stage_that_hangs_does_not_take_a_request_over_its_deadline(server: Server, question: str) -> None:
    bodies: dict[str, dict[str, Any]] = {
        "/v1/audio/transcriptions": {"model": "omni-demo", "input_audio": {"data": question, "format": "wav"}},
        "/v1/chat/completions": long_chat(question, "text"),
        "/v1/completions": {"model": "omni-demo", "prompt": "Once upon a time", "max_tokens": 400},
    }
    for stage in ("media", "llm"):
        hung = server.workers()[stage]
        os.kill(hung, signal.SIGSTOP)
        try:
            for path, body in bodies.items():
                if stage == "media" and path == "/v1/completions":
                    continue
                begun = time.monotonic()
                status, answer = server.post(path, body, x_request_timeout="1.0")
                if stage == "llm" and path == "/v1/audio/transcriptions":
                    assert status == 200
                    continue
                assert (status, answer["error"]["code"]) == (408, "deadline_exceeded")
                assert time.monotonic() - begun < 5
        finally:
            os.kill(hung, signal.SIGCONT)


def test_the_serving_process_never_loads_torch(server: Server) -> None:
    maps = Path(f"/proc/{server.process.pid}/maps").read_text()
    for library in ("libtorch", "onnxruntime", "libav"):
        assert library not in maps, library


def test_kill_9_of_the_server_leaves_no_process_and_no_shared_memory(server: Server) -> None:
    """The last test of the module: it ends the server that the others share."""
    before = set(os.listdir("/dev/shm"))
    pids = list(server.workers().values())
    assert len(pids) >= 5  # more where the weights of the demo's pictures are there
    pending = in_thread(lambda: _lost(server))
    server.wait_for(lambda: _in_flight(server) >= 1, 10)
    server.process.kill()
    server.process.wait(5)
    assert wait_gone(pids, 2.0) == []
    assert pending() == "connection lost"
    assert set(os.listdir("/dev/shm")) <= before


def _lost(server: Server) -> str:
    try:
        server.post("/v1/chat/completions", long_chat(None, "text", "audio"))
    except OSError:
        return "connection lost"
    return "answered"
