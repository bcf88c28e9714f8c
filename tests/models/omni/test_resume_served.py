"""An omni deployment whose workers are killed in mid-answer: its client gets what it would have undisturbed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from tests.media import pictures
from tests.models.omni.media import image
from tests.models.qwen2_5_omni.whole import STEPS
from tests.orchestrator.spine import idle, until

from omni_actors.entrypoints.offline import AsyncOmni, Output, collect, open_omni
from omni_actors.orchestrator import RequestStream
from omni_actors.protocol.params import Prompt, Sampling, Speech
from omni_actors.protocol.request import MediaChunk, MediaRef, Request, TextDelta

pytestmark = [pytest.mark.slow, pytest.mark.deadline(300)]

TOKENS, FRAMES = 120, 160

ROUNDING = 4
"""Of 16-bit samples: how sound is cut is a matter of timing."""

SMALL = [
    "stages.thinker.options.kv_blocks=256",
    "stages.thinker.options.max_model_len=1024",
    "stages.talker.options.kv_blocks=256",
    "stages.talker.options.max_model_len=1024",
]

FAMILIES: dict[str, tuple[list[str], list[tuple[str, int, type]]]] = {
    # What is set, and who dies behind how many events of a kind.
    "qwen3-omni": ([], [("thinker", 10, TextDelta), ("talker", 1, MediaChunk), ("code2wav", 2, MediaChunk)]),
    "qwen2.5-omni": (
        [f"stages.token2wav.options.steps={STEPS}"],
        [("talker", 1, MediaChunk), ("token2wav", 1, MediaChunk)],
    ),
}


@dataclass
class Killed:
    """``stage`` is killed when the client has got so many events of a kind; ``None`` for nobody."""

    stage: str | None
    after: int = 1
    kind: type = MediaChunk
    seen: int = field(default=0, init=False)

    def see(self, event: object, stream: RequestStream) -> None:
        self.seen += isinstance(event, self.kind)
        if self.stage is not None and self.seen == self.after and isinstance(event, self.kind):
            pid = stream.replicas[self.stage].pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)


class Watched:
    """A stream that kills on its way to its client."""

    def __init__(self, stream: RequestStream, killed: Killed) -> None:
        self._stream = stream
        self._killed = killed

    def __aiter__(self) -> Watched:
        return self

    async def __anext__(self) -> Any:
        event = await self._stream.__anext__()
        self._killed.see(event, self._stream)
        return event


async def ask(
    omni: AsyncOmni,
    number: int = 0,
    media: tuple[MediaRef, ...] = (),
    killed: Killed | None = None,
    frames: int = FRAMES,
) -> Output:
    parts: list[dict[str, Any]] = [{"type": it.modality, "index": i} for i, it in enumerate(media)]
    question = {"type": "text", "text": f"Question {number}: what does the sea say?"}
    sampling = Sampling(max_tokens=TOKENS, temperature=0.8, seed=number, ignore_eos=True, stop=["never said"])
    params = {
        "prompt": Prompt(messages=[{"role": "user", "content": [*parts, question]}]),
        "sampling": sampling,
        "speech": Speech(max_tokens=frames, seed=number),
    }
    inputs = ("text", *dict.fromkeys(it.modality for it in media))
    request = Request(task="chat", inputs=inputs, outputs=("text", "audio"), params=params, media=media)
    async with omni.open(request) as stream:
        watched: Any = Watched(stream, killed or Killed(None))
        return await collect(watched)


def assert_same(found: Output, expected: Output) -> None:
    assert found.choices == expected.choices
    ours, theirs = (np.frombuffer(it.pcm, "<i2").astype(int) for it in (found, expected))
    assert len(ours) == len(theirs)
    assert np.abs(ours - theirs).max() <= ROUNDING
    for stage in ("thinker", "talker"):
        assert found.usage[stage].prompt_tokens == expected.usage[stage].prompt_tokens
        assert found.usage[stage].completion_tokens == expected.usage[stage].completion_tokens


async def settled(omni: AsyncOmni) -> None:
    with trio.fail_after(60):
        await until(lambda: omni.orchestrator.ready)
    with trio.fail_after(10):
        await idle(omni.orchestrator)


@pytest.mark.parametrize("family", FAMILIES)
async def test_each_stage_may_die_in_mid_answer(family: str, tiny_model: Callable[[str], Path]) -> None:
    """With one replica each, and a picture, which the media process gives again."""
    settings, deaths = FAMILIES[family]
    async with open_omni(str(tiny_model(family)), overrides=[*SMALL, *settings], platform="cpu") as omni:
        picture = pictures.png(image(64, 64).array)

        async def answer(killed: Killed | None = None) -> Output:
            media = (await omni.media.decode(picture, modality="image"),)
            return await ask(omni, 0, media, killed)

        expected = await answer()
        assert len(expected.choices[0].token_ids) == TOKENS
        assert len(expected.pcm) > 20_000
        for stage, after, kind in deaths:
            assert_same(await answer(Killed(stage, after, kind)), expected)
            await settled(omni)
            assert omni.orchestrator.recovery.resumed[stage] == 1


async def test_one_of_two_replicas_dies_under_many_streams(tiny_model: Callable[[str], Path]) -> None:
    overrides = [*SMALL, "stages.thinker.replicas=2", "stages.talker.replicas=2"]
    async with open_omni(str(tiny_model("qwen3-omni")), overrides=overrides, platform="cpu") as omni:
        count, frames = 8, 60

        async def run(stage: str | None, kind: type, after: int) -> dict[int, Output]:
            """All of them at once; the first one's worker dies."""
            found: dict[int, Output] = {}

            async def client(number: int) -> None:
                killed = Killed(stage if number == 0 else None, after, kind)
                found[number] = await ask(omni, number, killed=killed, frames=frames)

            async with trio.open_nursery() as nursery:
                for number in range(count):
                    nursery.start_soon(client, number)
            return found

        expected = await run(None, TextDelta, 0)
        for stage, kind, after in (("thinker", TextDelta, 30), ("talker", MediaChunk, 1)):
            found = await run(stage, kind, after)
            for number in range(count):
                assert_same(found[number], expected[number])
            await settled(omni)
            assert omni.orchestrator.recovery.resumed[stage] >= 1
