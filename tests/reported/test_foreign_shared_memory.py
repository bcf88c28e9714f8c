"""T15: what a start does with what others left in shared memory. Ours is nameless (memfd): there is nothing of its own
to sweep, and nothing of others that it would touch."""

from __future__ import annotations

import os
import signal
import uuid
from pathlib import Path

import pytest
from tests.demo.server import serving

from .stub_voice_client import CHAT, answer_of, chat, expected_text


@pytest.mark.deadline(60)
def test_foreign_segments_stay_and_own_ones_have_no_name(tmp_path: Path) -> None:
    theirs = [Path("/dev/shm") / f"{name}-{uuid.uuid4().hex}" for name in ("psm", "omni_actors", "sem.mp")]
    try:
        for path in theirs:
            path.write_bytes(b"another's")
        before = set(os.listdir("/dev/shm"))
        for round in ("first", "second"):
            (tmp_path / round).mkdir()
            with serving(tmp_path / round, "stub-voice", "--platform", "cpu") as server:
                prompt = f"the {round}"
                spoken = chat(prompt, 40, modalities=["text", "audio"], audio={"voice": "tone", "format": "wav"})
                assert server.post(CHAT, spoken)[0] == 200
                assert answer_of(server.post(CHAT, chat(prompt, 3))) == expected_text(prompt, 3)
                assert set(os.listdir("/dev/shm")) <= before
                server.process.send_signal(signal.SIGKILL)
                server.process.wait(5)
            assert [path.read_bytes() for path in theirs] == [b"another's"] * 3
        assert set(os.listdir("/dev/shm")) <= before
    finally:
        for path in theirs:
            path.unlink(missing_ok=True)
