"""What a server does of its own accord: it looks up no name, calls nobody, and writes nothing outside its cache."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from omni_actors.models.weights.cache import cache_root
from omni_actors.telemetry.opt_out import OPT_OUT

from .server import Server
from .watch import Watch

pytestmark = [pytest.mark.weights, pytest.mark.slow, pytest.mark.deadline(120)]


def test_it_looks_up_nothing_and_writes_nothing_outside_its_cache(server: Server, watch: Watch) -> None:
    """With all of its stages at work; telemetry of a dependency begins with its import."""
    status, sound = server.post("/v1/audio/speech", {"input": "What is it?", "response_format": "wav"})
    assert status == 200
    clip = {"type": "input_audio", "input_audio": {"data": base64.b64encode(sound).decode(), "format": "wav"}}
    body = {"modalities": ["text", "audio"], "audio": {"voice": "alloy", "format": "mp3"}, "max_tokens": 8}
    status, _ = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": [clip]}], **body})
    assert status == 200
    assert watch.left() == []
    assert watch.recorded("looked-up", "called") == []
    known = (cache_root(), server.log.parent, Path("/proc"), Path("/dev"))
    made = [path for path in map(Path, watch.recorded("made")) if not any(path.is_relative_to(it) for it in known)]
    assert [path for path in made if path.exists()] == []
    if watch.library is not None:
        assert watch.recorded("made"), "the record works"


def test_every_worker_is_told_to_report_to_nobody(server: Server) -> None:
    workers = server.workers()
    assert "media" in workers
    for stage, pid in workers.items():
        environment = set(Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
        assert {f"{name}={value}".encode() for name, value in OPT_OUT.items()} <= environment, stage
