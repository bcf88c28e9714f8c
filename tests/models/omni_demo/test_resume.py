"""The demo's workers are killed while it speaks: its client gets what it would have undisturbed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest
import trio
from tests.orchestrator.spine import until

from omni_actors.entrypoints.offline import AsyncOmni, open_omni
from omni_actors.protocol.params import Prompt, Sampling, Speech
from omni_actors.protocol.request import MediaChunk, Request, TextDelta

pytestmark = [pytest.mark.slow, pytest.mark.deadline(300)]


async def tell(omni: AsyncOmni, killed: str | None = None, after: int = 0, kind: type = TextDelta) -> tuple[str, bytes]:
    """Text and samples of a story; a stage's worker dies behind so many events of a kind."""
    params = {
        "prompt": Prompt(messages=[{"role": "user", "content": "Tell me a short story of a dog and a river."}]),
        "sampling": Sampling(max_tokens=60, temperature=0.7, seed=3),
        "speech": Speech(seed=4),
    }
    text, pcm, seen = "", b"", 0
    request = Request(task="chat", outputs=("text", "audio"), params=params)
    async with omni.open(request) as stream:
        async for event in stream:
            text += event.text if isinstance(event, TextDelta) else ""
            pcm += event.data if isinstance(event, MediaChunk) else b""
            seen += isinstance(event, kind)
            if killed is not None and isinstance(event, kind) and seen == after:
                pid = stream.replicas[killed].pid
                assert pid is not None
                os.kill(pid, signal.SIGKILL)
    return text, pcm


async def test_a_story_is_finished(demo_weights: Path) -> None:
    async with open_omni(None, platform="cpu") as omni:
        text, pcm = await tell(omni)
        assert len(pcm) > 200_000
        for stage, after, kind in (("llm", 20, TextDelta), ("vocoder", 2, MediaChunk)):
            found = await tell(omni, stage, after, kind)
            assert found[0] == text
            assert len(found[1]) == len(pcm)
            ours, theirs = (np.frombuffer(it, "<i2").astype(int) for it in (found[1], pcm))
            assert np.abs(ours - theirs).max() <= 4
            assert omni.orchestrator.recovery.resumed[stage] == 1
            with trio.fail_after(90):
                await until(lambda: omni.orchestrator.ready)
