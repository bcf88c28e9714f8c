"""CSM's two stages: the codes and the sound that transformers makes of the same folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.models.speech_harness import Array, SpeechHarness, check_seeds, clip, refusal
from tests.models.stage_harness import Kept
from transformers import CsmForConditionalGeneration, CsmProcessor

from omni_actors.models.csm.pipeline import PIPELINE
from omni_actors.protocol.params import Speech

TEXTS = ("Hello there, who are you?", "The river runs to the sea.", "One, two, three, four.")
FRAMES = 40
RATE = 24_000


@pytest.fixture(scope="module")
def folder(tiny_model: Callable[[str], Path]) -> Path:
    return tiny_model("csm")


@pytest.fixture(scope="module")
def greedy(folder: Path) -> SpeechHarness:
    return SpeechHarness(PIPELINE, folder, temperature=0.0, max_frames=FRAMES)


@pytest.fixture(scope="module")
def drawn(folder: Path) -> SpeechHarness:
    return SpeechHarness(PIPELINE, folder, max_frames=FRAMES)


class Reference:
    """transformers' own generation."""

    def __init__(self, folder: Path) -> None:
        self.model: Any = CsmForConditionalGeneration.from_pretrained(folder).eval()
        self.processor: Any = CsmProcessor.from_pretrained(folder)

    def say(self, text: str, speaker: str = "0", said: str = "", clip: Array | None = None) -> tuple[Array, Array]:
        """Codes [frames, codebooks] and samples, greedily."""
        turns: list[dict[str, Any]] = []
        if clip is not None:
            content = [{"type": "text", "text": said}, {"type": "audio", "audio": clip}]
            turns.append({"role": speaker, "content": content})
        turns.append({"role": speaker, "content": [{"type": "text", "text": text}]})
        made = self.model.generate(
            **self.processor.apply_chat_template(turns, tokenize=True, return_dict=True),
            do_sample=False,
            depth_decoder_do_sample=False,
            max_new_tokens=FRAMES,
            output_audio=True,
            return_dict_in_generate=True,
        )
        return made.sequences[0].numpy(), made.audio[0].detach().numpy()


@pytest.fixture(scope="module")
def reference(folder: Path) -> Reference:
    return Reference(folder)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("speaker", ["0", "3"])
def test_codes_and_sound_are_those_of_transformers(
    greedy: SpeechHarness, reference: Reference, text: str, speaker: str
) -> None:
    spoken = greedy.say(text, voice=speaker)
    codes, samples = reference.say(text, speaker)
    assert np.array_equal(spoken.frames, codes)
    assert np.abs(spoken.samples - samples).max() < 1e-4
    assert len(np.unique(codes, axis=0)) > FRAMES / 2, "a model that repeats itself proves nothing"
    assert spoken.pieces > 3
    assert spoken.usage.completion_tokens == FRAMES


def test_a_reference_and_its_text_are_a_turn_before(greedy: SpeechHarness, reference: Reference) -> None:
    sound = clip(1.3)
    spoken = greedy.say(TEXTS[0], (sound, RATE), ref_text="This is me.")
    codes, samples = reference.say(TEXTS[0], said="This is me.", clip=sound)
    assert np.array_equal(spoken.frames, codes)
    assert np.abs(spoken.samples - samples).max() < 1e-4
    without, _ = reference.say(TEXTS[0])
    assert not np.array_equal(codes, without)
    another = greedy.say(TEXTS[0], (clip(1.3)[::-1].copy(), RATE), ref_text="This is me.")
    assert not np.array_equal(another.frames, codes)


def test_a_clip_that_comes_again_is_not_encoded_again(greedy: SpeechHarness) -> None:
    def heard() -> tuple[float, float]:
        counters = greedy.talker.engine.counters()
        return counters["clip_hits_total"], counters["clip_misses_total"]

    hits, misses = heard()
    first, second = (greedy.say(TEXTS[0], (clip(0.9), RATE), ref_text="This is me.").frames for _ in range(2))
    assert np.array_equal(first, second)
    assert heard() == (hits + 1, misses + 1)
    greedy.say(TEXTS[0], (clip(0.9)[:-480], RATE), ref_text="This is me.")
    assert heard() == (hits + 1, misses + 2)


def test_a_reference_comes_at_any_rate(greedy: SpeechHarness) -> None:
    spoken = greedy.say(TEXTS[0], (clip(1.0, 16_000), 16_000), ref_text="This is me.")
    assert len(spoken.frames) == FRAMES


@pytest.mark.parametrize("language", ["en", "English", "en-US", "Auto"])
def test_its_language_may_be_named(greedy: SpeechHarness, language: str) -> None:
    assert len(greedy.say(TEXTS[0], language=language, max_tokens=1).frames) == 1


def test_a_seed_repeats_whatever_runs_beside(drawn: SpeechHarness) -> None:
    check_seeds(drawn, TEXTS)


@pytest.mark.parametrize(("first", "longest"), [(1, 1), (3, 5), (100, 100)])
def test_sound_does_not_depend_on_how_it_is_cut(folder: Path, greedy: SpeechHarness, first: int, longest: int) -> None:
    codec = {"first_chunk_frames": first, "min_chunk_frames": 1, "chunk_frames": longest}
    cut = SpeechHarness(PIPELINE, folder, codec=codec, temperature=0.0, max_frames=30)
    spoken = cut.say(TEXTS[1])
    with torch.inference_mode():
        whole = greedy.talker.adapter._model  # the talker has dropped its decoder: the codec's own is whole
        assert whole.codec_model.decoder is None
        codes = torch.from_numpy(spoken.frames).T[None]
        samples = greedy.codec.adapter._model.decode(codes).audio_values[0, 0].numpy()
    assert np.abs(spoken.samples - samples).max() < 1e-4


def test_what_it_cannot_say_is_refused(greedy: SpeechHarness) -> None:
    assert refusal(greedy, voice="Ada") == (400, "voice")
    assert refusal(greedy, " ") == (400, "input")
    assert refusal(greedy, language="French") == (400, "language")
    assert refusal(greedy, "Hello", (clip(0.5), RATE)) == (400, "ref_text")
    assert refusal(greedy, "Hello" * 1000) == (400, "input")
    assert refusal(greedy, "Hello<|AUDIO|>") == (400, "input")
    assert refusal(greedy, "Hello", (clip(0.5), RATE), ref_text="Me.<|end_of_text|>") == (400, "ref_text")
    assert refusal(greedy, "Hello", (clip(0.5), RATE), ref_text="Me." * 2000) == (400, "ref_text")


def test_what_does_not_fit_fails_alone_and_an_abort_frees_at_once(greedy: SpeechHarness) -> None:
    engine = greedy.talker.engine
    for key, text in ((1, "a" * 2000), (2, TEXTS[0]), (3, TEXTS[1])):  # the model's context is 1024
        greedy.talker.admit(key, {"speech": Speech(text=text)}, None, ())
    out = Kept()
    for _ in range(6):
        engine.step(out)
    assert (out.failed[1].status, out.failed[1].param) == (400, "input")
    engine.abort(2)
    assert engine.counters()["requests"] == 1
    while engine.runnable:
        engine.step(out)
    assert set(out.done) == {3}
    assert np.array_equal([p.tensors["codes"][0] for key, p in out.payloads if key == 3], greedy.say(TEXTS[1]).frames)
