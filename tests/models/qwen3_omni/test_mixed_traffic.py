"""Two hundred requests at once, of all kinds and manners: each gets what it gets alone, and nothing stays behind."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio

from omni_actors import AsyncOmni, Request, open_omni
from omni_actors.protocol.params import Prompt, Sampling, Speech
from omni_actors.protocol.request import MediaChunk, TextDelta

REQUESTS = 200
AT_ONCE = 48
QUESTIONS = 12
ROUNDING = 2
"""Samples of 16 bits: where a vocoder's window is cut decides how its sums are rounded."""

GAUGES = (
    "requests",
    "running",
    "waiting",
    "kv_blocks_used",
    "jobs",
    "early",
    "arena_used_bytes",
    "deliveries",
    "questions",
    "clips",
)

pytestmark = [pytest.mark.slow, pytest.mark.deadline(240)]


@dataclass(frozen=True)
class Ask:
    """A question, whether it is answered in speech too, and in whose voice."""

    question: int
    spoken: bool

    @property
    def request(self) -> Request:
        text = f"Question {self.question}: " + "what is the red robot doing by the sea? " * (1 + self.question % 3)
        params: dict[str, Any] = {
            "prompt": Prompt(messages=[{"role": "user", "content": text}]),
            "sampling": Sampling(temperature=0.0, max_tokens=8 + self.question, ignore_eos=True),
        }
        if self.spoken:
            params["speech"] = Speech(
                voice=("ethan", "chelsie", "aiden")[self.question % 3],
                seed=self.question,
                max_tokens=12 + 2 * self.question,
            )
        return Request(task="chat", outputs=("text", "audio") if self.spoken else ("text",), params=params)


@dataclass
class Got:
    text: str = ""
    pcm: bytes = b""


async def take(omni: AsyncOmni, ask: Ask, *, leave_after: int | None = None, pause_s: float = 0.0) -> Got | None:
    """The answer; ``None`` if its client left after so many events. A slow reader pauses before each event."""
    got, events = Got(), 0
    async with omni.open(ask.request) as stream:
        async for event in stream:
            events += 1
            if leave_after is not None and events > leave_after:
                return None
            if isinstance(event, TextDelta):
                got.text += event.text
            elif isinstance(event, MediaChunk):
                got.pcm += event.data
            if pause_s:
                await trio.sleep(pause_s)
    return got


def same(one: Got, two: Got) -> bool:
    a, b = (np.frombuffer(it.pcm, np.int16).astype(np.int32) for it in (one, two))
    return one.text == two.text and len(a) == len(b) and bool(np.abs(a - b).max(initial=0) <= ROUNDING)


async def test_each_gets_what_it_gets_alone_and_nothing_stays_behind(tiny_model: Callable[[str], Path]) -> None:
    # A small pool of blocks and small pieces: requests are preempted, and many chunks cross.
    overrides = [
        "stages.thinker.options.kv_blocks=256",
        "stages.talker.options.kv_blocks=256",
        "stages.thinker.options.max_model_len=1024",
        "stages.talker.options.max_model_len=1024",
    ]
    drawn = random.Random(7)
    async with open_omni(str(tiny_model("qwen3-omni")), overrides=overrides) as omni:
        alone = {Ask(q, False): await take(omni, Ask(q, False)) for q in range(QUESTIONS)}
        counters = await omni.orchestrator.counters()
        # Text alone touches the thinker alone.
        assert [counters[stage][0]["finished_total"] for stage in ("talker", "code2wav")] == [0, 0]
        alone |= {Ask(q, True): await take(omni, Ask(q, True)) for q in range(QUESTIONS)}
        assert all(got is not None and got.text and bool(got.pcm) is ask.spoken for ask, got in alone.items())
        assert len({got.text for got in alone.values() if got}) == QUESTIONS
        wrong: list[Ask] = []
        left = 0

        async def client(ask: Ask, leave_after: int | None, pause_s: float) -> None:
            nonlocal left
            async with limit:
                got = await take(omni, ask, leave_after=leave_after, pause_s=pause_s)
            want = alone[ask]
            if got is None:
                left += 1
            elif want is None or not same(got, want):
                wrong.append(ask)

        limit = trio.CapacityLimiter(AT_ONCE)
        async with trio.open_nursery() as nursery:
            for number in range(REQUESTS):
                ask = Ask(drawn.randrange(QUESTIONS), spoken=number % 2 == 1)
                leaves = drawn.randrange(4) if drawn.random() < 0.1 else None
                slow = drawn.choice((0.0, 0.0, 0.0, 0.02))
                nursery.start_soon(client, ask, leaves, slow)
        assert not wrong
        assert left >= REQUESTS * 0.04
        await settled(omni)


async def settled(omni: AsyncOmni) -> None:
    """Every table, pool and arena is empty as soon as the last aborts are acknowledged."""
    while omni.orchestrator.inflight:
        await omni.orchestrator.vacant.park()
    for stage, replicas in (await omni.orchestrator.counters()).items():
        for counters in replicas:
            kept = {name: value for name in GAUGES if (value := counters.get(name, 0))}
            assert counters, stage
            assert not kept, (stage, kept)
