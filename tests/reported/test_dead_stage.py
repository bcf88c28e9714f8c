"""A worker dies with requests in it; the error names the stage, and another worker takes its place."""

from __future__ import annotations

import os
import signal
import time

import pytest
from tests.demo.server import Server, in_thread

from .stub_voice_client import CHAT, SAY, answer_of, chat, expected_sound, expected_text, metric, running, say

SETTINGS = (
    "limits.max_resumes=0",
    "limits.restart_delay_s=1.5",
    "stages.writer.options.step_s=0.01",
    "stages.speaker.options.step_s=0.01",
)

pytestmark = pytest.mark.deadline(60)

FAULTS = {
    "writer": (CHAT, chat("hello", 100_000), SAY, say("one two")),
    "speaker": (SAY, say("word " * 2000, stream=False), CHAT, chat("hello", 3)),
}


@pytest.mark.parametrize("stage", ["writer", "speaker"])
def test_a_dead_stage_is_named_to_those_who_need_it_and_comes_back(server: Server, stage: str) -> None:
    path, body, other_path, other_body = FAULTS[stage]
    lost = [in_thread(lambda: server.post(path, body)) for _ in range(4)]
    server.wait_for(lambda: running(server, stage) == 4, 10)
    os.kill(server.workers()[stage], signal.SIGKILL)
    died = time.monotonic()
    for answer in lost:
        status, error = answer()
        assert (status, error["error"]["code"]) == (503, "stage_died")
        assert stage in error["error"]["message"]
    assert time.monotonic() - died < 5

    status, health = server.get("/health")
    assert status == 503
    assert health["unavailable"] == [stage]
    refused = server.post(path, body)
    assert (refused[0], refused[1]["error"]["code"]) == (503, "stage_unavailable")
    assert server.post(other_path, other_body)[0] == 200
    assert server.get("/live")[0] == 200

    server.wait_for(server.healthy, 20)
    assert answer_of(server.post(CHAT, chat("back", 5))) == expected_text("back", 5)
    status, pcm = server.post(SAY, say("back again"))
    assert (status, pcm) == (200, expected_sound("back again"))
    assert metric(server, "omni_actors_stage_restarts_total", stage=stage) >= 1
