"""A split thinker in real processes, with images and speech: what one in one piece says and sounds like."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from PIL import Image
from tests.models.omni import media
from tests.orchestrator.spine import idle, kill, until

from omni_actors.entrypoints.offline import AsyncOmni, Output, open_omni
from omni_actors.protocol.errors import OmniError
from omni_actors.protocol.params import Prompt, Sampling, Speech
from omni_actors.protocol.request import Request

SMALL = [f"stages.{stage}.options.kv_memory_mib=16" for stage in ("thinker", "talker")]
SPLIT = [
    "stages.thinker.prefill.replicas=1",
    "stages.thinker.prefill.options.block_size=8",
    "stages.thinker.options.block_size=5",
    "limits.restart_delay_s=0.05",
]
COUNT = 12


def picture(seed: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(media.image(56 + 28 * (seed % 2), 84, seed).array).save(file, "png")
    return file.getvalue()


async def ask(omni: AsyncOmni, number: int) -> Output:
    """Every second one is spoken, two of three have an image; of some the text is only read aloud."""
    if number % 6 == 5:
        said = Speech(text=f"Answer {number}: nothing is to be seen.", temperature=0.0, max_tokens=12)
        return await omni.run(Request(task="speech", outputs=("audio",), params={"speech": said}))
    text = {"type": "text", "text": f"Question {number}: what is to be seen?"}
    refs = [await omni.media.decode(picture(number), modality="image")] if number % 3 else []
    parts = [{"type": "image", "index": 0}, text] if refs else text["text"]
    outputs = ("text", "audio") if number % 2 else ("text",)
    params: dict[str, Any] = {
        "prompt": Prompt(messages=[{"role": "user", "content": parts}]),
        "sampling": Sampling(temperature=0.0, repetition_penalty=1.0, max_tokens=8, ignore_eos=True),
    }
    if "audio" in outputs:
        params["speech"] = Speech(temperature=0.0, max_tokens=12)
    inputs = ("text", "image") if refs else ("text",)
    return await omni.run(Request(task="chat", inputs=inputs, outputs=outputs, params=params, media=tuple(refs)))


async def ask_all(omni: AsyncOmni) -> list[Output | OmniError]:
    """At concurrency 8. Who comes while a stage is down is refused, and comes again."""
    found: dict[int, Output | OmniError] = {}
    free = trio.CapacityLimiter(8)

    async def one(number: int) -> None:
        async with free:
            while number not in found:
                try:
                    found[number] = await ask(omni, number)
                except OmniError as error:
                    if error.info.code != "stage_unavailable":
                        found[number] = error
                    await trio.sleep(0.1)

    async with trio.open_nursery() as nursery:
        for number in range(COUNT):
            nursery.start_soon(one, number)
    return [found[number] for number in range(COUNT)]


def assert_same(found: Output | OmniError, expected: Output | OmniError) -> None:
    assert isinstance(found, Output)
    assert isinstance(expected, Output)
    assert found.choices == expected.choices
    assert found.usage["thinker"].prompt_tokens == expected.usage["thinker"].prompt_tokens
    if "talker" in expected.usage:
        assert found.usage["talker"] == expected.usage["talker"]
        ours, theirs = (np.frombuffer(it.pcm, "<i2").astype(int) for it in (found, expected))
        assert len(ours) == len(theirs)
        assert np.abs(ours - theirs).max(initial=0) <= 4  # how sound is cut is a matter of timing


@pytest.mark.deadline(300)
@pytest.mark.slow
async def test_a_split_thinker_sounds_like_a_whole_one(tiny_model: Callable[[str], Path]) -> None:
    folder = str(tiny_model("qwen3-omni"))
    async with open_omni(folder, overrides=SMALL, platform="cpu") as omni:
        expected = await ask_all(omni)
    assert sum(len(it.pcm) > 0 for it in expected if isinstance(it, Output)) >= 3
    async with open_omni(folder, overrides=SMALL + SPLIT, platform="cpu") as omni:
        orchestrator = omni.orchestrator
        for ours, theirs in zip(await ask_all(omni), expected, strict=True):
            assert_same(ours, theirs)
        counters = (await orchestrator.counters())["thinker"][0]
        assert counters["recomputed_prompt_tokens_total"] == 0
        assert counters["kv_imported_tokens_total"] == sum(
            it.usage["thinker"].prompt_tokens for it in expected if isinstance(it, Output)
        )
        results: list[Output | OmniError] = []

        async def under_fire() -> None:
            results.extend(await ask_all(omni))

        for stage in ("thinker-prefill", "thinker"):
            results.clear()
            replica = orchestrator.pools[stage].replicas[0]
            async with trio.open_nursery() as nursery:
                nursery.start_soon(under_fire)
                with trio.fail_after(30):
                    await until(lambda it=replica: bool(it.requests))  # type: ignore[misc]
                kill(replica.pid)
            for ours, theirs in zip(results, expected, strict=True):
                assert_same(ours, theirs)
            assert orchestrator.recovery.resumed[stage]
            with trio.fail_after(90):
                await until(lambda: orchestrator.ready)
        for ours, theirs in zip(await ask_all(omni), expected, strict=True):
            assert_same(ours, theirs)
        with trio.fail_after(10):
            await idle(orchestrator)
        for replicas in (await orchestrator.counters()).values():
            for gauges in replicas:
                held = {name: value for name, value in gauges.items() if value and name.startswith(("kv_", "swapped"))}
                assert {name for name in held if not name.endswith("_total")} == set()
