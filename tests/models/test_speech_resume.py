"""Speech whose workers are killed in mid-sentence: its client hears what it would have undisturbed.

A talker by an autoregressive engine goes on behind its frames, another one makes them again; a codec goes on behind the
samples that the client has, or makes them again.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import trio
from tests.orchestrator.spine import idle, until

from omni_actors.entrypoints.offline import AsyncOmni, open_omni
from omni_actors.pipelines.factory import resolve
from omni_actors.protocol.params import Speech
from omni_actors.protocol.request import MediaChunk, Request

pytestmark = [pytest.mark.slow, pytest.mark.deadline(300)]

TEXT = "The river runs to the sea, and the boy and his dog run home before the rain begins to fall."

ROUNDING = 4
"""Of 16-bit samples: how sound is cut is a matter of timing."""

DEATHS = {
    # Checkpoint and pipeline, and who dies.
    "qwen3-tts": ("qwen3-tts", ("talker", "codec")),
    "qwen3-tts-fused": ("qwen3-tts", ("tts",)),
    "csm": ("csm", ("talker", "codec")),
}


async def speak(omni: AsyncOmni, killed: str | None = None) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The samples; the stage's worker dies when the second piece of sound has come."""
    speech = Speech(text=TEXT, max_tokens=100, seed=6, temperature=0.9)
    pcm, pieces = bytearray(), 0
    async with omni.open(Request(task="speech", outputs=("audio",), params={"speech": speech})) as stream:
        async for event in stream:
            if isinstance(event, MediaChunk):
                pcm += event.data
                pieces += 1
                if killed is not None and pieces == 2:
                    pid = stream.replicas[killed].pid
                    assert pid is not None
                    os.kill(pid, signal.SIGKILL)
    return np.frombuffer(pcm, "<i2").astype(int)


@pytest.mark.parametrize("name", DEATHS)
async def test_a_sentence_is_finished(name: str, tiny_model: Callable[[str], Path]) -> None:
    checkpoint, stages = DEATHS[name]
    plan = resolve(str(tiny_model(checkpoint)), pipeline=name, platform="cpu")
    async with open_omni(plan) as omni:
        expected = await speak(omni)
        assert len(expected) > 20_000
        for stage in stages:
            found = await speak(omni, stage)
            assert len(found) == len(expected)
            assert np.abs(found - expected).max() <= ROUNDING
            assert omni.orchestrator.recovery.resumed[stage] == 1
            with trio.fail_after(90):
                await until(lambda: omni.orchestrator.ready)
                await idle(omni.orchestrator)
