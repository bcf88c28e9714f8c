"""Code2wav's sound is transformers', however it is cut into pieces and whoever shares its batches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.worker.engines.codec_driver import check_every_delivery, codec_engine, decode_in_pieces
from transformers import Qwen3OmniMoeConfig
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeCode2Wav

from omni_actors.models.common.transformer_codec import contexts
from omni_actors.models.qwen3_omni.code2wav import Code2Wav
from omni_actors.models.tiny import reference
from omni_actors.worker.engines.oneshot import GenerationEngine

LENGTHS = (75, 52, 7, 1)

TOLERANCE = 5e-5
"""Of full scale. Windows are other shapes than the whole, and float32 rounds them otherwise (1e-5 has been seen)."""

Samples = np.ndarray[Any, np.dtype[np.float32]]


@pytest.fixture(scope="module")
def folder(tiny_model: Callable[[str], Path]) -> Path:
    return tiny_model("qwen3-omni")


@pytest.fixture(scope="module")
def streams(folder: Path) -> list[np.ndarray[Any, np.dtype[np.int64]]]:
    random = np.random.default_rng(0)
    return [random.integers(0, 128, (frames, 8)) for frames in LENGTHS]


@pytest.fixture(scope="module")
def whole(folder: Path, streams: list[Any]) -> list[Samples]:
    """Of transformers' whole model."""
    model: Any = reference.model(folder)
    with torch.inference_mode():
        return [model.code2wav(torch.from_numpy(codes).T[None])[0, 0].numpy() for codes in streams]


@pytest.fixture(scope="module")
def engine(folder: Path) -> GenerationEngine:
    return codec_engine(Code2Wav, model=str(folder))


def configured(engine: GenerationEngine, **options: Any) -> GenerationEngine:
    adapter: Any = engine._adapter
    adapter.configure(options)
    return engine


def sufficient(engine: GenerationEngine) -> int:
    adapter: Any = engine._adapter
    return int(adapter.sufficient_context)


def check(got: Samples, expected: Samples) -> None:
    assert got.shape == expected.shape
    assert np.abs(got - expected).max() <= TOLERANCE


def test_the_sound_is_one(whole: list[Samples]) -> None:
    """Neither silent nor clipped: what follows would show little."""
    for samples in whole[:3]:
        assert 0.02 < samples.std() < 0.5
        assert np.mean(np.abs(samples) >= 1) < 0.01


@pytest.mark.deadline(120)
def test_every_chunk_size_gives_the_whole(engine: GenerationEngine, streams: list[Any], whole: list[Samples]) -> None:
    context = sufficient(engine)
    for size in range(1, 51):
        made = configured(engine, chunk_frames=size, ramp=False, left_context_frames=(None, context + 9)[size % 2])
        low = 0 if size % 10 == 0 else 1
        out = decode_in_pieces(made, streams[low:], lambda key, turn: 1 + (3 * key + turn) % 4)
        for key, expected in enumerate(whole[low:]):
            check(out.of(key), expected)


@pytest.mark.parametrize("more", [0, 1, 30, 1000])
def test_every_sufficient_context_gives_the_whole(
    engine: GenerationEngine, streams: list[Any], whole: list[Samples], more: int
) -> None:
    made = configured(engine, chunk_frames=6, ramp=False, left_context_frames=sufficient(engine) + more)
    out = decode_in_pieces(made, streams, lambda key, turn: 5)
    for key, expected in enumerate(whole):
        check(out.of(key), expected)


@settings(max_examples=10, deadline=None)
@given(first=st.integers(1, 10), least=st.integers(1, 10), most=st.integers(1, 50), random=st.randoms())
def test_the_ramp_changes_no_sample(
    engine: GenerationEngine, streams: list[Any], whole: list[Samples], first: int, least: int, most: int, random: Any
) -> None:
    made = configured(engine, first_chunk_frames=first, min_chunk_frames=least, chunk_frames=most)
    out = decode_in_pieces(
        made, streams, lambda key, turn: random.randint(1, 9), steps=lambda turn: random.random() < 0.5
    )
    for key, expected in enumerate(whole):
        check(out.of(key), expected)


def test_too_little_context_is_heard(engine: GenerationEngine, streams: list[Any], whole: list[Samples]) -> None:
    made = configured(engine, chunk_frames=6, ramp=False, left_context_frames=4)
    got = decode_in_pieces(made, streams[:1], lambda key, turn: 6).of(0)
    assert np.abs(got - whole[0]).max() > 20 * TOLERANCE


def test_contexts_are_those_of_the_published_checkpoint() -> None:
    """Eight layers of a window of 72 frames; eleven frames for the convolutions."""
    config = Qwen3OmniMoeConfig().code2wav_config
    with torch.device("meta"):
        model = Qwen3OmniMoeCode2Wav(config)
    blocks = torch.nn.ModuleList([*model.upsample, *model.decoder])
    assert contexts(torch.nn.Sequential(), config, blocks) == (1920, 11, 8 * 71 + 11)


@pytest.mark.parametrize("context", [None, 40])
def test_sound_goes_on_behind_what_was_heard(
    engine: GenerationEngine, streams: list[np.ndarray[Any, Any]], context: int | None
) -> None:
    adapter: Any = configured(engine, chunk_frames=16, left_context_frames=context)._adapter
    rate = adapter.samples_per_frame
    assert adapter.sufficient_context + 4 < len(streams[0]), "the first frames have no part in the last"
    counts = [1, rate, 3 * rate + 7, 40 * rate, 70 * rate + 5, 74 * rate]
    check_every_delivery(engine, streams[0], counts, tolerance=TOLERANCE, slack=2 * rate)
