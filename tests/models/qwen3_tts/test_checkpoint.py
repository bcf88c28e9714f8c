"""The tiny checkpoints, and the package's model code in parts."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from tests.models.qwen3_tts.reference import Clip, reference
from tests.models.qwen3_tts.samples import KINDS, folder_of, voice_clip
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from omni_actors.models import tiny
from omni_actors.models.qwen3_tts.package import mel_filters, package

TEXT = "Hello world, how are you?"


def test_the_model_code_comes_alone() -> None:
    """Nothing that only the package's inference code needs is imported, and nobody else's modules are changed."""
    package()
    heavy = ("qwen_tts", "librosa", "torchaudio", "sox", "gradio", "soundfile")
    assert [name for name in heavy if name in sys.modules and name != "soundfile"] == []
    assert "default" not in ROPE_INIT_FUNCTIONS


def test_a_missing_package_is_told_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    package.cache_clear()
    with pytest.raises(Exception, match="pip install --no-deps qwen-tts-hf"):
        package()
    monkeypatch.undo()


def test_mel_filters_are_triangles_of_equal_area() -> None:
    """Slaney's: each filter has an area of one over its band in Hz, and the bands cover what lies between."""
    bank = mel_filters(24000, 1024, 128, 0, 12000)
    assert bank.shape == (128, 513)
    assert bank.dtype == np.float32
    wide = bank[(bank > 0).sum(1) > 8]  # a filter of few bins is sampled too coarsely
    np.testing.assert_allclose(wide.sum(1) * 24000 / 1024, 1, rtol=0.05)
    assert (bank.argmax(1)[1:] >= bank.argmax(1)[:-1]).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_tiny_checkpoint_is_small_and_repeats(kind: str, tmp_path: Path) -> None:
    state = torch.random.get_rng_state()
    again = tiny.build(kind, tmp_path / kind)
    assert torch.equal(state, torch.random.get_rng_state())
    for part in ("model.safetensors", "config.json", "speech_tokenizer/model.safetensors"):
        assert (again / part).read_bytes() == (folder_of(kind) / part).read_bytes()
    numbers = 0
    for part in ("model.safetensors", "speech_tokenizer/model.safetensors"):
        with safe_open(again / part, framework="pt") as file:
            numbers += sum(file.get_tensor(name).numel() for name in list(file.keys()))
    assert numbers < 5_000_000


def test_what_it_says_varies_and_depends_on_what_it_is_told() -> None:
    voices, base = reference(folder_of("qwen3-tts")), reference(folder_of("qwen3-tts-base"))
    clip = voice_clip(2.0)
    said = [
        voices.codes(TEXT, voice="vivian", language="english"),
        voices.codes(TEXT, voice="ryan", language="english"),
        voices.codes(TEXT, voice="ryan", language="german"),
        voices.codes(TEXT, voice="eric"),
        voices.codes(TEXT, voice="ryan", language="english", instructions="slow please"),
        voices.codes(TEXT + " Fine.", voice="ryan", language="english"),
        base.codes(TEXT, clip=Clip(clip, None)),
        base.codes(TEXT, clip=Clip(voice_clip(2.0, pitch=120), None)),
        base.codes(TEXT, clip=Clip(clip, "what is said")),
        base.codes(TEXT, clip=Clip(clip, "other words")),
    ]
    assert len({codes.numpy().tobytes() for codes in said}) == len(said)
    for codes in said:
        assert len(codes) >= 3
        assert len({tuple(frame) for frame in codes.tolist()}) >= 0.8 * len(codes)
    sound = voices.sound(said[0])
    assert len(sound) == 1920 * len(said[0])
    assert 0.01 < sound.std() < 0.5
    assert np.abs(sound).max() < 1


def test_the_encoders_codes_depend_on_the_sound() -> None:
    encoder = reference(folder_of("qwen3-tts-base")).encoder
    codes = encoder.encode(voice_clip(2.0))
    assert codes.shape == (25, 4)
    assert len({tuple(frame) for frame in codes.tolist()}) > 15
    # It looks back only: a longer clip begins with the same codes, and half a frame at the end is a frame.
    assert torch.equal(encoder.encode(voice_clip(2.0)[: 1920 * 10]), codes[:10])
    assert len(encoder.encode(voice_clip(2.0)[: 1920 * 10 + 900])) == 11
