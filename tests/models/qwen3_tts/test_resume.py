"""Speech that goes on where an earlier attempt was is what it would have been undisturbed."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
import torch
from tests.models.qwen3_tts.cases import CLONES, DESIGNS, VOICES
from tests.models.qwen3_tts.drive import Ask, Out, fused_of, run, speech, submit, talker_of
from tests.models.qwen3_tts.samples import voice_clip

from omni_actors.protocol.frames import Prefix
from omni_actors.worker.engines.autoregressive import AutoregressiveEngine

LONG, WORDS = VOICES[2].text, "The boy and his dog run home."

ASKS = {
    "greedy": ("qwen3-tts", Ask(speech(LONG, voice="ryan"))),
    "seeded": ("qwen3-tts", Ask(speech(LONG, voice="eric", temperature=0.9, repetition_penalty=1.1, seed=3))),
    "design": ("qwen3-tts-design", DESIGNS[0].ask()),
    "timbre": ("qwen3-tts-base", CLONES[1].ask()),
    "clip": ("qwen3-tts-base", Ask(speech(LONG, ref_text=WORDS, temperature=0.9, seed=3), voice_clip(1.1))),
}


@pytest.fixture(scope="module")
def talkers() -> Callable[[str], AutoregressiveEngine]:
    return cache(talker_of)


def attempt(engine: AutoregressiveEngine, ask: Ask, prefix: Prefix) -> Out:
    out = Out()
    submit(engine, 0, ask, prefix=prefix)
    while engine.runnable:
        assert engine.step(out)
    assert not out.errors
    return out


@pytest.mark.parametrize("name", ASKS)
def test_every_cut(talkers: Callable[[str], AutoregressiveEngine], name: str) -> None:
    kind, ask = ASKS[name]
    engine = talkers(kind)
    whole = run(engine, [ask])
    assert not whole.errors
    steps = len(whole.told[0])
    assert steps > 3
    for cut in range(1, steps + 1):
        rest = attempt(engine, ask, whole.prefix(0, cut))
        assert torch.equal(rest.codes(0), whole.codes(0)), f"cut behind frame {cut}"
        assert len(rest.told[0]) == steps - cut
        assert rest.payloads[0][0].meta == whole.payloads[0][0].meta
        assert rest.usage[0].completion_tokens == whole.usage[0].completion_tokens
        assert rest.usage[0].prompt_tokens == whole.usage[0].prompt_tokens
        # Nothing is said twice, and what had been said is there at once.
        assert len(rest.payloads[0]) <= steps - cut + 1
        assert not engine.counters()["requests"]


@pytest.mark.parametrize("name", ["seeded", "clip"])
def test_in_one_worker_the_sound_goes_on_behind_what_was_heard(name: str) -> None:
    """The frames are made again, as they were; their sound is not."""
    kind, ask = ASKS[name]
    engine = fused_of(kind)
    whole = run(engine, [ask])
    sound = whole.sound(0)
    for delivered in (1, len(sound) // 3, len(sound) - 5, len(sound)):
        out = Out()
        submit(engine, 0, ask, delivered=delivered)
        while engine.runnable:
            assert engine.step(out)
        assert not out.errors
        start = out.payloads[0][0].meta["start"]
        assert delivered - 5000 < start <= delivered
        assert np.abs(out.sound(0) - sound[start:]).max() < 1e-4
        assert out.usage[0] == whole.usage[0]
