"""Higgs Audio's two stages: the codes and the sound that transformers makes of the same folder."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.models.speech_harness import Array, SpeechHarness, check_seeds, clip, refusal
from transformers import HiggsAudioV2ForConditionalGeneration, HiggsAudioV2Processor

from omni_actors.models.common.processors import audio_tokenizer_folder, load_processor
from omni_actors.models.higgs_audio.pipeline import PIPELINE
from omni_actors.models.tiny.higgs_audio import codec_class

TEXTS = ("Hello there, who are you?", "The river runs to the sea.", "One, two, three.")
FRAMES = 40
CODEBOOKS = 4
RATE = 24_000


@pytest.fixture(scope="module")
def folder(tiny_model: Callable[[str], Path]) -> Path:
    return tiny_model("higgs-audio")


@pytest.fixture(scope="module")
def greedy(folder: Path) -> SpeechHarness:
    harness = SpeechHarness(PIPELINE, folder, temperature=0.0, max_frames=FRAMES)
    # The second draw of what repeats is no matter of temperature: transformers makes it with torch's own numbers.
    harness.talker.adapter._recommended.pop("ras_win_len")
    return harness


class Reference:
    """transformers' own generation."""

    def __init__(self, folder: Path) -> None:
        self.model: Any = HiggsAudioV2ForConditionalGeneration.from_pretrained(folder).eval()
        self.model.generation_config.ras_win_len = None
        self.codec: Any = codec_class().from_pretrained(audio_tokenizer_folder(folder)).eval()
        self.processor = load_processor(HiggsAudioV2Processor, folder, None)

    def say(
        self, text: str, scene: str = "Audio is recorded from a quiet room.", said: str = "", sound: Array | None = None
    ) -> tuple[Array, Array]:
        """Codes [frames, codebooks] and samples, greedily."""
        turns = [_turn("system", "Generate audio following instruction."), _turn("scene", scene)]
        if sound is not None:
            self.processor.audio_tokenizer = self.codec
            turns += [_turn("user", said), {"role": "assistant", "content": [{"type": "audio", "audio": sound}]}]
        turns.append(_turn("user", text))
        inputs = self.processor.apply_chat_template(
            turns, add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt"
        )
        rows = self.model.generate(**inputs, do_sample=False, max_new_tokens=FRAMES + CODEBOOKS)[0]
        rows = rows[len(inputs["audio_input_ids"][0]) :] if sound is not None else rows
        over = (rows == self.model.config.audio_stream_eos_id).all(-1).nonzero()
        rows = rows[1 : int(over[0])] if len(over) else rows[1:]
        codes = self.processor.revert_delay_pattern(rows).clip(0, self.model.config.audio_stream_bos_id - 1)
        with torch.inference_mode():
            samples = self.codec.decode(codes.T[None]).audio_values[0, 0]
        return codes.numpy(), samples.numpy()


def _turn(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": [{"type": "text", "text": text}]}


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


def test_instructions_are_the_scene(greedy: SpeechHarness, reference: Reference) -> None:
    spoken = greedy.say(TEXTS[0], instructions="A large hall.")
    codes, _ = reference.say(TEXTS[0], "A large hall.")
    assert np.array_equal(spoken.frames, codes)
    assert not np.array_equal(codes, reference.say(TEXTS[0])[0])


def test_an_end_that_one_codebook_says_is_the_end(folder: Path, greedy: SpeechHarness, reference: Reference) -> None:
    for model in (greedy.talker.adapter._model, reference.model):
        _end_sooner(model, 40.0)
    try:
        spoken = [greedy.say(text, max_tokens=200) for text in TEXTS]
        made = [reference.say(text) for text in TEXTS]
    finally:
        for model in (greedy.talker.adapter._model, reference.model):
            _end_sooner(model, 1 / 40.0)
    assert min(len(codes) for codes, _ in made) < FRAMES
    for one, (codes, samples) in zip(spoken, made, strict=True):
        assert np.array_equal(one.frames, codes)
        assert np.abs(one.samples - samples).max() < 1e-4


def _end_sooner(model: Any, factor: float) -> None:
    """Move the end's logit of one codebook away from zero, by what a code beside it has."""
    config = model.config
    eos = 2 * config.codebook_size + config.audio_stream_eos_id
    with torch.no_grad():
        if factor > 1:
            model.audio_lm_head.weight[eos] = 1.2 * model.audio_lm_head.weight[eos - 5]
        else:
            model.audio_lm_head.weight[eos] = 0


def test_a_seed_repeats_whatever_runs_beside(folder: Path) -> None:
    check_seeds(SpeechHarness(PIPELINE, folder, max_frames=FRAMES), TEXTS)


def test_a_code_that_repeats_is_drawn_again(folder: Path) -> None:
    spoken = SpeechHarness(PIPELINE, folder, temperature=0.01, max_frames=100).say(TEXTS[1])
    plain = SpeechHarness(PIPELINE, folder, temperature=0.01, max_frames=100)
    plain.talker.adapter._recommended.pop("ras_win_len")
    assert not np.array_equal(spoken.frames, plain.say(TEXTS[1]).frames)


@pytest.mark.parametrize(("first", "longest"), [(1, 1), (3, 5), (100, 100)])
def test_sound_does_not_depend_on_how_it_is_cut(folder: Path, greedy: SpeechHarness, first: int, longest: int) -> None:
    codec = {"first_chunk_frames": first, "min_chunk_frames": 1, "chunk_frames": longest}
    cut = SpeechHarness(PIPELINE, folder, codec=codec, temperature=0.0, max_frames=FRAMES)
    cut.talker.adapter._recommended.pop("ras_win_len")
    assert np.abs(cut.say(TEXTS[1]).samples - greedy.say(TEXTS[1]).samples).max() < 1e-4


@pytest.mark.skipif(find_spec("torchaudio") is not None, reason="with torchaudio it can")
def test_without_torchaudio_a_clip_is_refused(greedy: SpeechHarness) -> None:
    assert refusal(greedy, "Hello", (clip(0.2), RATE), ref_text="This is me.") == (400, "ref_audio")


@pytest.mark.skipif(find_spec("torchaudio") is None, reason="transformers' codec encodes with torchaudio only")
def test_a_reference_and_its_text_are_turns_before(greedy: SpeechHarness, reference: Reference) -> None:
    sound = clip(0.9)
    spoken = greedy.say(TEXTS[0], (sound, RATE), ref_text="This is me.")
    codes, samples = reference.say(TEXTS[0], said="This is me.", sound=sound)
    assert np.array_equal(spoken.frames, codes)
    assert np.abs(spoken.samples - samples).max() < 1e-4
