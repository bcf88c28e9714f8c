"""The speech families' tiny checkpoints: small, the same each time, and such that a fault would be heard."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from tests.models.speech_harness import SpeechHarness, Spoken, WaveformHarness

from omni_actors.models.tiny import build
from omni_actors.pipelines.registry import Registry

FAMILIES = ("csm", "pocket-tts", "dia", "higgs-audio", "vibevoice")

PARTS = {
    # Family: a part of each kind that the talker has, and of the codec.
    "csm": (
        (
            "backbone_model.layers.2.self_attn.o_proj",
            "depth_decoder.model.layers.1.mlp.down_proj",
            "backbone_model.embed_tokens",
        ),
        ("decoder.decoder_transformer.layers.1.self_attn.o_proj", "decoder.upsample"),
    ),
    "pocket-tts": (
        ("model.layers.2.self_attn.o_proj", "flow_head.layers.1", "model.audio_latent_proj"),
        ("decoder.decoder_transformer.layers.1.self_attn.o_proj", "decoder.upsample"),
    ),
    "dia": (
        (
            "model.encoder.layers.1.mlp.down_proj",
            "model.decoder.layers.2.cross_attention.o_proj",
            "model.decoder.layers.2.self_attention.o_proj",
        ),
        ("decoder.block.3.res_unit3.conv1", "quantizer.quantizers.8.out_proj"),
    ),
    "higgs-audio": (
        ("model.layers.2.self_attn.o_proj", "model.layers.2.audio_mlp", "model.embed_audio_tokens"),
        ("acoustic_decoder.block.4.res_unit3.conv1", "quantizer.quantizers.3.project_out"),
    ),
    "vibevoice": (
        (
            "model.language_model.layers.1.self_attn.o_proj",
            "model.diffusion_head.layers.1",
            "model.semantic_connector",
            "model.audio_tower.decoder.stem",
        ),
        (),
    ),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_it_is_small_and_the_same_each_time(family: str, tmp_path: Path) -> None:
    first, second = build(family, tmp_path / "first"), build(family, tmp_path / "second")
    files = sorted(path.relative_to(first) for path in first.rglob("*") if path.is_file())
    assert files == sorted(path.relative_to(second) for path in second.rglob("*") if path.is_file())
    for file in files:
        assert (first / file).read_bytes() == (second / file).read_bytes(), file
    count = 0
    for weights in first.rglob("*.safetensors"):
        with safe_open(weights, "pt") as file:
            count += sum(file.get_tensor(name).numel() for name in file.keys())  # noqa: SIM118
    assert 10_000 < count < 5_000_000


@pytest.mark.parametrize("family", FAMILIES)
def test_a_fault_in_any_part_is_heard(family: str, tiny_model: Callable[[str], Path]) -> None:
    """Without this, equality with another implementation would say little."""
    pipeline = Registry.installed([]).load(family)
    made: type[SpeechHarness] | type[WaveformHarness] = SpeechHarness if len(pipeline.stages) > 1 else WaveformHarness
    harness = made(pipeline, tiny_model(family))

    def say() -> Spoken:
        return harness.say("The river runs to the sea.", temperature=0.0, max_tokens=30)

    right = say()
    talker_parts, codec_parts = PARTS[family]
    for name in talker_parts:
        with _fault(harness.talker.adapter._model, name):
            wrong = say()
        assert not _same(wrong.frames, right.frames), f"a fault in {name} changes nothing"
    for name in codec_parts:
        assert isinstance(harness, SpeechHarness)
        adapter = harness.codec.adapter
        with _fault(getattr(adapter, "_model", None) or adapter._decoder, name):
            wrong = say()
        assert _same(wrong.frames, right.frames)
        assert not _same(wrong.samples, right.samples), f"a fault in {name} changes nothing"
    assert _same(say().samples, right.samples)


def _same(one: Any, other: Any) -> bool:
    return one.shape == other.shape and bool(np.abs(one - other).max() < 1e-4)


@contextmanager
def _fault(model: Any, name: str) -> Iterator[None]:
    """Turns the sign of a part's weights for a while."""
    parameters = list(model.get_submodule(name).parameters())
    assert parameters
    _turn(parameters)
    try:
        yield
    finally:
        _turn(parameters)


@torch.no_grad()
def _turn(parameters: list[Any]) -> None:
    for parameter in parameters:
        parameter.neg_()
