"""A thinker in two halves, with media: the tokens, states and codes of one in one piece."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import numpy as np
import pytest
from tests.models.omni import media
from tests.models.omni.line import Ask, Line
from tests.models.split_line import FIRST, SplitLine

from omni_actors.pipelines.declaration import Pipeline
from omni_actors.protocol.params import Prompt, Speech

FAMILIES = ("qwen3_omni", "qwen2_5_omni")


def spoken_codes(pipeline: Pipeline) -> Pipeline:
    """Up to the talker: what comes behind is not touched by the split."""
    codec = pipeline.stages[-1].name
    return replace(pipeline, stages=pipeline.stages[:-1], edges=tuple(e for e in pipeline.edges if e.stage != codec))


def asks() -> list[Ask]:
    """Text alone, with sound, with an image, with a video and its sound, and mixed; spoken and not."""
    given = [
        [],
        [media.image(64, 96, seed=1)],
        [media.audio(1.3, seed=2)],
        [media.video(4, 56, 84, seed=3, sound=2.0)],
        [media.image(84, 56, seed=4), media.audio(0.7, seed=5), media.image(56, 56, seed=6)],
        [media.video(4, 84, 56, seed=7)],
        [],
        [media.image(64, 96, seed=1)],
    ]
    made = []
    for number, items in enumerate(given):
        parts = [{"type": item.modality, "index": index} for index, item in enumerate(items)]
        content: Any = [*parts, {"type": "text", "text": f"Question number {number}: what is this?"}]
        prompt = Prompt(messages=[{"role": "user", "content": content if items else content[0]["text"]}])
        payloads = [item.payload(index) for index, item in enumerate(items)]
        speech = Speech(max_tokens=8) if number % 2 == 0 or number in (1, 3) else None
        made.append(Ask(prompt, payloads, max_tokens=6 + number, speech=speech))
    return made


@pytest.mark.deadline(120)
@pytest.mark.slow
def test_a_split_thinker_without_a_talker_needs_no_states(tiny_model: Callable[[str], Path]) -> None:
    """Only its first half has an edge to hand on by: what that keeps for a next stage is let lie."""
    pipeline: Pipeline = resolve_name("omni_actors.models.qwen3_omni.pipeline:PIPELINE")
    alone = replace(pipeline, stages=pipeline.stages[:2], edges=pipeline.edges[:1])
    asked = [replace(ask, speech=None) for ask in asks()[:2]]
    options = {"thinker": {"kv_memory_mib": 16}}
    expected = Line(alone, tiny_model("qwen3-omni"), options).run(asked)
    split = SplitLine(alone, tiny_model("qwen3-omni"), options)
    assert [split.adapter(name).decoder.kv_shape.side > 0 for name in (FIRST, "thinker")] == [True, False]
    found = split.run(asked)
    assert [it.tokens for it in found] == [it.tokens for it in expected]
    assert all(it.tokens for it in found)


@pytest.mark.deadline(240)
@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_a_split_thinker_says_what_a_whole_one_says(family: str, tiny_model: Callable[[str], Path]) -> None:
    folder = tiny_model(family.replace("_omni", "-omni").replace("2_5", "2.5"))
    pipeline = spoken_codes(resolve_name(f"omni_actors.models.{family}.pipeline:PIPELINE"))
    options = {"talker": {"kv_memory_mib": 16}, "thinker": {"kv_memory_mib": 16, "max_batch": 8, "step_tokens": 64}}
    whole = Line(pipeline, folder, options)
    expected = whole.run(asks(), concurrency=8)
    split = SplitLine(
        pipeline,
        folder,
        options | {FIRST: options["thinker"] | {"block_size": 8}, "thinker": options["thinker"] | {"block_size": 5}},
    )
    found = split.run(asks(), concurrency=8)
    for theirs, ours in zip(expected, found, strict=True):
        assert ours.error is None
        assert theirs.error is None
        assert (ours.tokens, ours.text, ours.finish_reason) == (theirs.tokens, theirs.text, theirs.finish_reason)
        assert ours.usage["thinker"] == theirs.usage["thinker"]
        assert ours.payloads.keys() >= theirs.payloads.keys() - {"talker"}
        if "talker" in theirs.usage:
            assert np.array_equal(ours.joined("talker", "codes"), theirs.joined("talker", "codes"))
            difference = ours.joined("thinker", "states") - theirs.joined("thinker", "states")
            assert np.abs(difference).max() < 1e-4
    assert len({tuple(it.tokens) for it in found}) > 4
    assert split.idle()
    counters = split.engines["thinker"].counters()
    assert counters["recomputed_prompt_tokens_total"] == 0
    assert counters["kv_imported_tokens_total"] == sum(it.usage["thinker"].prompt_tokens for it in found)
    assert split.engines[FIRST].counters()["prefix_hit_tokens_total"] > 0
