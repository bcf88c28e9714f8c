"""The tiny omni checkpoints load and generate as the real ones do, and react to all that they are given."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from omni_actors.models.tiny import build
from omni_actors.models.tiny.reference import model, processor

FAMILIES = ["qwen3-omni", "qwen2.5-omni"]
MILLION = 1_000_000


@lru_cache(maxsize=2)
def loaded(folder: Path) -> tuple[Any, Any]:
    """The processor and the model, for all tests of a folder."""
    return processor(folder), model(folder)


def conversation(*parts: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"role": "system", "content": "You are a robot."},
        {"role": "user", "content": [*parts, {"type": "text", "text": "What is this?"}]},
    ]


def media() -> dict[str, Any]:
    random = np.random.default_rng(0)
    return {
        "images": [random.integers(0, 256, (70, 100, 3), dtype=np.uint8)],
        "audio": [(random.standard_normal(24000) * 0.1).astype(np.float32)],
        "videos": [random.integers(0, 256, (4, 60, 90, 3), dtype=np.uint8)],
    }


def generate(folder: Path, given: dict[str, Any], frames: int = 30) -> tuple[list[int], torch.Tensor, torch.Tensor]:
    """Greedy: the new tokens, the first codebook's codes, and the waveform."""
    of, ours = loaded(folder)
    kinds = {"images": "image", "audio": "audio", "videos": "video"}
    messages = conversation(*({"type": kinds[name]} for name in given))
    text = of.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    inputs = dict(of(text=text, return_tensors="pt", **given))
    prompt = inputs["input_ids"].shape[1]
    greedy: dict[str, Any] = {"thinker_do_sample": False, "talker_do_sample": False}
    if hasattr(ours, "code2wav"):
        codec, greedy["thinker_eos_token_id"] = ours.code2wav, ours.config.im_end_token_id
    else:
        codec, talker = ours.token2wav, ours.config.talker_config
        greedy |= {"talker_eos_token_id": [talker.tts_codec_end_token_id], "token2wav_num_steps": 3}
        # Else transformers 5.23 hands them to the talker too, which refuses them.
        inputs = {("thinker_" + name if name.startswith("pixel") else name): value for name, value in inputs.items()}
    codes: list[torch.Tensor] = []
    hook = codec.register_forward_pre_hook(lambda _, arguments: codes.append(arguments[0]))
    torch.manual_seed(0)
    tokens, wave = ours.generate(
        **inputs,
        **greedy,
        speaker="ethan" if hasattr(ours, "code2wav") else "Ethan",
        thinker_max_new_tokens=24,
        thinker_min_new_tokens=24,
        talker_max_new_tokens=frames,
        talker_min_new_tokens=frames,
    )
    hook.remove()
    assert len(codes) == 1
    return tokens[0, prompt:].tolist(), codes[0].reshape(-1, codes[0].shape[-1])[0], wave.flatten()


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_seed_gives_the_same_files_and_another_seed_others(family: str, tmp_path: Path) -> None:
    state = torch.random.get_rng_state()
    one, two, three = (build(family, tmp_path / name, seed=seed) for name, seed in (("a", 0), ("b", 0), ("c", 1)))
    assert torch.equal(torch.random.get_rng_state(), state)
    names = sorted(path.name for path in one.iterdir())
    assert {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json"} <= set(names)
    for name in names:
        assert (one / name).read_bytes() == (two / name).read_bytes(), name
    assert (one / "model.safetensors").read_bytes() != (three / "model.safetensors").read_bytes()


@pytest.mark.parametrize("family", FAMILIES)
def test_it_has_under_five_million_parameters(family: str, tiny_model: Callable[[str], Path]) -> None:
    assert sum(parameter.numel() for parameter in loaded(tiny_model(family))[1].parameters()) < 5 * MILLION


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kinds", [(), ("images",), ("audio",), ("videos",), ("images", "audio", "videos")])
def test_it_speaks_and_does_not_repeat_itself(
    family: str, kinds: tuple[str, ...], tiny_model: Callable[[str], Path]
) -> None:
    tokens, codes, wave = generate(tiny_model(family), {kind: media()[kind] for kind in kinds})
    assert len(set(tokens)) >= 12
    assert len(set(codes.tolist())) >= 12
    assert 0.02 < wave.std() < 0.5
    assert (wave.abs() < 0.99).float().mean() > 0.99


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", ["images", "audio", "videos"])
def test_other_media_give_another_answer(family: str, kind: str, tiny_model: Callable[[str], Path]) -> None:
    given = {kind: media()[kind]}
    other = {kind: [given[kind][0][::-1].copy()]}
    assert generate(tiny_model(family), given, 4)[0] != generate(tiny_model(family), other, 4)[0]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_special_token_and_role_is_one_token(family: str, tiny_model: Callable[[str], Path]) -> None:
    of, _ = loaded(tiny_model(family))
    text = of.apply_chat_template(
        conversation({"type": "image"}, {"type": "audio"}, {"type": "video"}),
        tokenize=False,
        add_generation_prompt=True,
    )
    assert len(of.tokenizer.encode("systemuserassistant")) == 3
    marks = re.findall(r"<\|.*?\|>", text)
    assert {of.image_token, of.audio_token, of.video_token, of.vision_bos_token, of.audio_eos_token} < set(marks)
    for mark in marks:
        assert len(of.tokenizer.encode(mark)) == 1


def test_frames_are_cut_into_patches_as_images_are(tiny_model: Callable[[str], Path]) -> None:
    """An image is a video of one frame; here it keeps its size, so that no resampling differs."""
    of, _ = loaded(tiny_model("qwen3-omni"))
    pixels = np.random.default_rng(1).integers(0, 256, (64, 96, 3), dtype=np.uint8)
    image = of.image_processor(images=[pixels], return_tensors="pt")
    video = of.video_processor([pixels[None]], size={"shortest_edge": 64 * 64, "longest_edge": 128 * 128})
    assert image["image_grid_thw"].tolist() == video["video_grid_thw"].tolist()
    torch.testing.assert_close(video["pixel_values_videos"], image["pixel_values"], atol=1e-6, rtol=0)
