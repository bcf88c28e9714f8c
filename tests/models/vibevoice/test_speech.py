"""VibeVoice's stage: the steps and the sound that transformers makes of the same folder, with the same noise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.models.speech_harness import Array, WaveformHarness, clip, refusal
from transformers import VibeVoiceForConditionalGeneration, VibeVoiceProcessor

from omni_actors.models.vibevoice import talker
from omni_actors.models.vibevoice.pipeline import PIPELINE

TEXTS = ("Hello there, who are you?", "The river runs to the sea.", "One, two, three.")
STEPS = 30
RATE = 24_000
NOISE = 11


@pytest.fixture(scope="module")
def folder(tiny_model: Callable[[str], Path]) -> Path:
    return tiny_model("vibevoice")


@pytest.fixture(scope="module")
def harness(folder: Path) -> WaveformHarness:
    return WaveformHarness(PIPELINE, folder, max_frames=STEPS)


class Reference:
    """transformers' own generation."""

    def __init__(self, folder: Path) -> None:
        self.model: Any = VibeVoiceForConditionalGeneration.from_pretrained(folder).eval()
        self.processor: Any = VibeVoiceProcessor.from_pretrained(folder)
        self.frame = self.model.config.audio_token_id
        self.begin = self.model.config.audio_bos_token_id

    def say(
        self, text: str, speaker: str = "0", sound: Array | None = None, **settings: Any
    ) -> tuple[list[int], Array]:
        """Tokens and samples, with noise out of torch's generator seeded with ``NOISE``."""
        return self.talk([(speaker, text)], sound, **settings)

    def talk(
        self, said: Sequence[tuple[str, str]], sound: Array | None = None, **settings: Any
    ) -> tuple[list[int], Array]:
        """The same of several turns; the clip is that of the first one's speaker."""
        turns: list[Any] = [{"role": role, "content": [{"type": "text", "text": text}]} for role, text in said]
        if sound is not None:
            turns[0]["content"].append({"type": "audio", "audio": sound})
        inputs = self.processor.apply_chat_template(turns, tokenize=True, return_dict=True, return_tensors="pt")
        torch.manual_seed(NOISE)
        made = self.model.generate(**inputs, max_new_tokens=STEPS, return_dict_in_generate=True, **settings)
        return made.sequences[0, inputs["input_ids"].shape[1] :].tolist(), made.audio[0][0].detach().numpy()


@pytest.fixture(scope="module")
def reference(folder: Path) -> Reference:
    return Reference(folder)


@pytest.fixture
def same_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """The numbers that transformers draws in the place of ours; of a frame's two rows it uses one."""

    def drawn(shape: Sequence[int], seed: int, name: str, place: int) -> torch.Tensor:
        if name == "talker":
            return torch.randn(2, shape[1])[:1]
        if len(shape) == 1:
            return torch.randn(tuple(shape))
        # As torch.randn_like does: its latents lie transposed in memory.
        return torch.randn_like(torch.empty(shape[0], shape[2], shape[1]).transpose(1, 2))

    monkeypatch.setattr(talker, "noise", drawn)
    torch.manual_seed(NOISE)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("speaker", ["0", "2"])
def test_sound_is_that_of_transformers(
    same_noise: None, harness: WaveformHarness, reference: Reference, text: str, speaker: str
) -> None:
    spoken = harness.say(text, voice=speaker)
    tokens, samples = reference.say(text, speaker)
    assert spoken.usage.completion_tokens == tokens.count(reference.frame)
    assert spoken.samples.shape == samples.shape
    assert np.abs(spoken.samples - samples).max() < 1e-4
    frames = samples.reshape(-1, 3200)
    assert np.abs(np.diff(frames, axis=0)).max(axis=1).min() > 0.05, "a model that repeats itself proves nothing"


def test_speech_ends_and_begins_anew_where_the_model_says_so(
    same_noise: None, folder: Path, harness: WaveformHarness, reference: Reference
) -> None:
    models = (harness.talker.adapter._model, reference.model)
    try:
        _likelier(models, reference.begin, 1.6)
        found: list[int] = []
        for text in TEXTS:
            torch.manual_seed(NOISE)
            spoken = harness.say(text)
            tokens, samples = reference.say(text)
            assert np.abs(spoken.samples - samples).max() < 1e-4
            assert len(tokens) < STEPS, "it ends by itself"
            found += tokens
        assert reference.begin in found
    finally:
        _likelier(models, reference.begin, 1 / 1.6)


def _likelier(models: Sequence[Any], token: int, factor: float) -> None:
    with torch.no_grad():
        for model in models:
            model.lm_head.weight[token] *= factor


def test_guidance_and_steps_are_options_and_matter(
    same_noise: None, folder: Path, harness: WaveformHarness, reference: Reference
) -> None:
    other = WaveformHarness(PIPELINE, folder, max_frames=STEPS, guidance_scale=3.0, diffusion_steps=6)
    torch.manual_seed(NOISE)
    spoken = other.say(TEXTS[0])
    _, samples = reference.say(TEXTS[0], guidance_scale=3.0, num_diffusion_steps=6)
    assert np.abs(spoken.samples - samples).max() < 1e-4
    torch.manual_seed(NOISE)
    plain = harness.say(TEXTS[0]).samples
    count = min(len(plain), len(samples))
    assert np.abs(plain[:count] - samples[:count]).max() > 0.01


def test_a_clip_is_the_voice(same_noise: None, harness: WaveformHarness, reference: Reference) -> None:
    sound = clip(0.7)
    spoken = harness.say(TEXTS[0], (sound, RATE))
    _, samples = reference.say(TEXTS[0], sound=sound)
    assert np.abs(spoken.samples - samples).max() < 1e-4


def test_lines_that_name_a_speaker_are_turns(same_noise: None, harness: WaveformHarness, reference: Reference) -> None:
    text = "Good day.\nSpeaker 1: Hello there,\nwho are you?\nspeaker 0: One, two, three."
    spoken = harness.say(text, voice="2")
    said = [("2", "Good day."), ("1", "Hello there,\nwho are you?"), ("0", "One, two, three.")]
    _, samples = reference.talk(said)
    assert np.abs(spoken.samples - samples).max() < 1e-4


def test_a_seed_repeats_whatever_runs_beside(harness: WaveformHarness) -> None:
    alone = [harness.say(TEXTS[0], seed=seed).samples for seed in (1, 2)]
    assert not np.array_equal(alone[0][:3200], alone[1][:3200])
    together = harness.say_all([(TEXTS[0], 1), (TEXTS[1], 7), (TEXTS[0], 2)])
    assert np.array_equal(together[0].samples, alone[0])
    assert np.array_equal(together[2].samples, alone[1])


def test_sound_leaves_frame_by_frame(harness: WaveformHarness) -> None:
    spoken = harness.say(TEXTS[0], max_tokens=5)
    assert spoken.pieces == len(spoken.samples) // 3200 > 1


def test_what_it_cannot_say_is_refused(harness: WaveformHarness) -> None:
    assert refusal(harness, voice="Ada") == (400, "voice")
    assert refusal(harness, " ") == (400, "input")
    assert refusal(harness, "Speaker 1:") == (400, "input")
