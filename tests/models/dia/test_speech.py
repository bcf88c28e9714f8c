"""Dia's two stages: the codes and the sound that transformers makes of the same folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.models.speech_harness import Array, SpeechHarness, check_seeds, clip, refusal
from transformers import DacModel, DiaForConditionalGeneration, DiaProcessor

from omni_actors.models.common.processors import audio_tokenizer_folder, load_processor
from omni_actors.models.dia.pipeline import PIPELINE

TEXTS = ("[S1] Hello there, who are you? [S2] I am fine.", "[S2] The river runs to the sea.", "[S1] One, two.")
FRAMES = 40
RATE = 44_100
SLOWEST = 15
"""Rows by which the last codebook is behind the first."""


@pytest.fixture(scope="module")
def folder(tiny_model: Callable[[str], Path]) -> Path:
    return tiny_model("dia")


@pytest.fixture(scope="module")
def greedy(folder: Path) -> SpeechHarness:
    return SpeechHarness(PIPELINE, folder, temperature=0.0, max_frames=FRAMES)


class Reference:
    """transformers' own generation."""

    def __init__(self, folder: Path) -> None:
        self.model: Any = DiaForConditionalGeneration.from_pretrained(folder).eval()
        self.codec = DacModel.from_pretrained(audio_tokenizer_folder(folder)).eval()
        self.processor = load_processor(DiaProcessor, folder, self.codec)

    def say(self, text: str, sound: Array | None = None, **settings: Any) -> tuple[Array, Array]:
        """Codes [frames, codebooks] and samples, greedily."""
        inputs = self.processor(text=[text], audio=None if sound is None else [sound], return_tensors="pt")
        begin = inputs["decoder_attention_mask"].shape[1] - SLOWEST
        settings = {"max_new_tokens": FRAMES + SLOWEST + 1, **settings}
        made = self.model.generate(**inputs, do_sample=False, **settings)
        config = self.model.config
        end = int((made[0, :, 0] == config.decoder_config.eos_token_id).nonzero()[0])
        rows = made[0].numpy()
        delays = config.delay_pattern
        codes = [[rows[f + delay, channel] for channel, delay in enumerate(delays)] for f in range(begin, end)]
        return np.asarray(codes), self.processor.decode(made, audio_prompt_len=begin).numpy()


@pytest.fixture(scope="module")
def reference(folder: Path) -> Reference:
    return Reference(folder)


@pytest.mark.parametrize("text", TEXTS)
def test_codes_and_sound_are_those_of_transformers(greedy: SpeechHarness, reference: Reference, text: str) -> None:
    spoken = greedy.say(text)
    codes, samples = reference.say(text)
    assert np.array_equal(spoken.frames, codes)
    assert spoken.samples.shape == samples.shape
    assert np.abs(spoken.samples - samples).max() < 1e-4
    assert len(np.unique(codes, axis=0)) > FRAMES / 2, "a model that repeats itself proves nothing"
    assert spoken.pieces > 1


def test_without_guidance_the_codes_are_others_and_those_of_transformers(
    folder: Path, greedy: SpeechHarness, reference: Reference
) -> None:
    plain = SpeechHarness(PIPELINE, folder, temperature=0.0, max_frames=FRAMES, guidance_scale=1.0).say(TEXTS[0])
    codes, _ = reference.say(TEXTS[0], guidance_scale=1.0)
    assert np.array_equal(plain.frames, codes)
    assert not np.array_equal(plain.frames, greedy.say(TEXTS[0]).frames)


def test_an_end_that_the_first_codebook_says_is_the_end(folder: Path, reference: Reference) -> None:
    harness = SpeechHarness(PIPELINE, folder, temperature=0.0)
    for model in (harness.talker.adapter._model, reference.model):
        _say_the_end_early(model)
    try:
        spoken = harness.say(TEXTS[1])
        codes, samples = reference.say(TEXTS[1], max_new_tokens=300)
    finally:
        _say_the_end_early(reference.model, undo=True)
    assert 0 < len(codes) < 280
    assert np.array_equal(spoken.frames, codes)
    assert np.abs(spoken.samples - samples).max() < 1e-4


def _say_the_end_early(model: Any, undo: bool = False) -> None:
    """Make the end's logit grow a little with each place: rare, but sure."""
    eos = model.config.decoder_config.eos_token_id
    with torch.no_grad():
        model.logits_dense.weight[eos] *= 1 / 1.8 if undo else 1.8


def test_a_reference_and_its_text_come_before(greedy: SpeechHarness, reference: Reference) -> None:
    sound = clip(0.4, RATE)
    spoken = greedy.say("[S1] Hello.", (sound, RATE), ref_text="[S1] This is me.")
    codes, samples = reference.say("[S1] This is me. [S1] Hello.", sound)
    assert np.array_equal(spoken.frames, codes)
    assert np.abs(spoken.samples - samples).max() < 1e-4


def test_a_text_without_a_speaker_is_spoken_by_the_voice(greedy: SpeechHarness) -> None:
    for voice in ("S1", "S2"):
        assert np.array_equal(greedy.say("Hello.", voice=voice).frames, greedy.say(f"[{voice}] Hello.").frames)


def test_a_seed_repeats_whatever_runs_beside(folder: Path) -> None:
    check_seeds(SpeechHarness(PIPELINE, folder, max_frames=FRAMES), TEXTS)


@pytest.mark.parametrize(("first", "longest"), [(1, 1), (3, 5), (100, 100)])
def test_sound_does_not_depend_on_how_it_is_cut(folder: Path, greedy: SpeechHarness, first: int, longest: int) -> None:
    codec = {"first_chunk_frames": first, "min_chunk_frames": 1, "chunk_frames": longest}
    cut = SpeechHarness(PIPELINE, folder, codec=codec, temperature=0.0, max_frames=FRAMES)
    assert np.abs(cut.say(TEXTS[1]).samples - greedy.say(TEXTS[1]).samples).max() < 1e-4


def test_what_it_cannot_say_is_refused(greedy: SpeechHarness) -> None:
    assert refusal(greedy, voice="Ada") == (400, "voice")
    assert refusal(greedy, "Hello", (clip(0.2), 24_000)) == (400, "ref_text")
    assert refusal(greedy, "a" * 1200) == (400, "input")
    assert refusal(greedy, "Hello <pad>") == (400, "input")
    assert refusal(greedy, temperature=0.5) == (400, "temperature")
