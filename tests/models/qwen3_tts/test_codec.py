"""The codec stage: sound does not depend on where windows are cut."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from tests.models.qwen3_tts.drive import codec_of, decode
from tests.models.qwen3_tts.reference import reference
from tests.models.qwen3_tts.samples import folder_of
from tests.worker.engines.codec_driver import check_every_delivery

from omni_actors.models.qwen3_tts.codec import Qwen3TTSCodec

FRAMES = 60


@cache
def frames() -> torch.Tensor:
    return torch.randint(0, 64, (FRAMES, 4), generator=torch.Generator().manual_seed(3))


@cache
def whole() -> np.ndarray[Any, Any]:
    sound: np.ndarray[Any, Any] = reference(folder_of("qwen3-tts")).sound(frames())
    return sound


def adapter_of(engine: Any) -> Qwen3TTSCodec:
    found: Qwen3TTSCodec = engine._adapter
    return found


@pytest.mark.parametrize("first", [1, 11, 21, 31, 41])
def test_streamed_is_the_whole_for_every_chunk_size(first: int) -> None:
    """Ten sizes each, to 50."""
    engine = codec_of()
    adapter = adapter_of(engine)
    for chunk in range(first, first + 10):
        adapter.configure({"ramp": False, "chunk_frames": chunk})
        np.testing.assert_allclose(decode(engine, frames()), whole(), rtol=0, atol=1e-4, err_msg=f"{chunk} frames")


def test_any_context_that_suffices_is_as_good() -> None:
    suffices = adapter_of(codec_of()).sufficient_context
    for context in (suffices, suffices + 3):
        engine = codec_of(ramp=False, chunk_frames=7, left_context_frames=context)
        np.testing.assert_allclose(decode(engine, frames()), whole(), rtol=0, atol=1e-4)


def test_less_context_costs_quality_and_the_least_costs_most() -> None:
    engine = codec_of()

    def loss(context: int) -> float:
        adapter_of(engine).configure({"ramp": False, "chunk_frames": 10, "left_context_frames": context})
        sound = decode(engine, frames())
        return float(10 * np.log10(np.square(sound - whole()).mean() / np.square(whole()).mean()))

    losses = [loss(context) for context in (0, 4, 12, 20)]
    assert losses == sorted(losses, reverse=True)
    assert losses[0] > -20, "it would not be heard"
    assert losses[-1] < -30


def test_the_context_that_suffices_is_what_the_decoder_sees() -> None:
    """The transformer's windows and the convolutions: rounded up, layer by layer, but no guess."""
    adapter = adapter_of(codec_of())
    with torch.inference_mode():
        base = adapter.decode(frames()[None])
        for back, changes in ((adapter.sufficient_context - 3, True), (adapter.sufficient_context + 1, False)):
            other = frames().clone()
            other[FRAMES - 1 - back] = (other[FRAMES - 1 - back] + 7) % 64
            last = (adapter.decode(other[None]) - base)[0, -1920:].abs().max()
            assert bool(last > 0) is changes, f"{back} frames back: {last}"


def test_the_clip_that_sound_goes_on_from_is_heard_not_played() -> None:
    for chunk in (1, 5, 50):
        engine = codec_of(ramp=False, chunk_frames=chunk)
        sound = decode(engine, frames(), context=25)
        np.testing.assert_allclose(sound, whole()[25 * 1920 :], rtol=0, atol=1e-4)


@pytest.mark.parametrize("heard", [0, 9])
def test_sound_goes_on_behind_what_was_heard(heard: int) -> None:
    """Also where it goes on from a clip's."""
    engine = codec_of(chunk_frames=16)
    adapter = adapter_of(engine)
    assert adapter.sufficient_context + 4 < FRAMES - heard, "the first frames have no part in the last"
    rate = adapter.samples_per_frame
    counts = [1, rate, 3 * rate + 7, 30 * rate, (FRAMES - heard - 6) * rate + 5, (FRAMES - heard) * rate]
    check_every_delivery(engine, frames().numpy(), counts, context=heard, tolerance=1e-4, slack=2 * rate)
