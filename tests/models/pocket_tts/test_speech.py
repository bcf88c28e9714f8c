"""Pocket TTS's two stages: the latents and the sound that transformers makes of the same folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file
from tests.models.speech_harness import Array, SpeechHarness, check_seeds, clip, refusal
from transformers import PocketTTSAudioTokenizerModel, PocketTTSForConditionalGeneration, PocketTTSProcessor

from omni_actors.models.common.processors import audio_tokenizer_folder, load_processor
from omni_actors.models.pocket_tts.pipeline import PIPELINE, describe

TEXTS = ("Hello there, who are you?", "The river runs to the sea.", "One, two, three.")
FRAMES = 40
RATE = 24_000


@pytest.fixture(scope="module")
def folder(tiny_model: Callable[[str], Path]) -> Path:
    return tiny_model("pocket-tts")


@pytest.fixture(scope="module")
def greedy(folder: Path) -> SpeechHarness:
    return SpeechHarness(PIPELINE, folder, temperature=0.0, max_frames=FRAMES)


class Reference:
    """transformers' own generation."""

    def __init__(self, folder: Path) -> None:
        self.model: Any = PocketTTSForConditionalGeneration.from_pretrained(folder).eval()
        codec = PocketTTSAudioTokenizerModel.from_pretrained(audio_tokenizer_folder(folder)).eval()
        self.processor = load_processor(PocketTTSProcessor, folder, codec)

    def say(self, text: str, voice: Any = None, sound: Array | None = None) -> tuple[Array, Array]:
        """Latents [frames, width] and samples, without noise."""
        parts: list[dict[str, Any]] = [{"type": "text", "text": text}]
        if voice is not None or sound is not None:
            parts.insert(0, {"type": "audio"})
        prompt = self.processor.apply_chat_template([{"role": "user", "content": parts}], tokenize=False)
        inputs = self.processor(
            text=[prompt],
            audio=None if sound is None else [sound],
            audio_prompt_latents=None if voice is None else [voice],
            return_tensors="pt",
        )
        made = self.model.generate(**inputs, do_sample=False, max_new_tokens=FRAMES)
        return made.audio_latents[0].numpy(), self.processor.decode(made.audio_latents[0]).numpy()


@pytest.fixture(scope="module")
def reference(folder: Path) -> Reference:
    return Reference(folder)


def voice_of(folder: Path, name: str) -> Any:
    return load_file(folder / "voices" / f"{name}.safetensors")["audio_prompt_latents"]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("voice", ["alba", "jean"])
def test_latents_and_sound_are_those_of_transformers(
    greedy: SpeechHarness, reference: Reference, folder: Path, text: str, voice: str
) -> None:
    spoken = greedy.say(text, voice=voice)
    latents, samples = reference.say(text, voice_of(folder, voice))
    assert spoken.frames.shape == latents.shape
    assert np.abs(spoken.frames - latents).max() < 1e-4 * np.abs(latents).max()
    assert np.abs(spoken.samples - samples).max() < 1e-4
    assert latents.std(axis=0).min() > 0.1, "a model that repeats itself proves nothing"
    assert spoken.usage.completion_tokens == len(latents)


def test_voices_differ_and_an_end_is_found(greedy: SpeechHarness) -> None:
    spoken = [greedy.say(TEXTS[0], voice=voice) for voice in ("alba", "jean")]
    assert not np.allclose(spoken[0].frames[:5], spoken[1].frames[:5], atol=0.1)
    ends = {len(greedy.say(text).frames) for text in TEXTS}
    assert min(ends) < FRAMES, "speech ends where the model says so"


def test_a_clip_is_the_voice(greedy: SpeechHarness, reference: Reference) -> None:
    sound = clip(1.3)
    spoken = greedy.say(TEXTS[0], (sound, RATE))
    latents, samples = reference.say(TEXTS[0], sound=sound)
    assert np.abs(spoken.frames - latents).max() < 1e-4 * np.abs(latents).max()
    assert np.abs(spoken.samples - samples).max() < 1e-4


def test_each_part_of_a_long_text_begins_anew(greedy: SpeechHarness, reference: Reference, folder: Path) -> None:
    parts = ("Hello there, who are you?", "I am fine and you can see the sea.")
    spoken = greedy.say(" ".join(parts), max_tokens=1000)
    made = [reference.say(part, voice_of(folder, "alba")) for part in parts]
    assert np.abs(spoken.samples[: len(made[0][1])] - made[0][1]).max() < 1e-4
    begun = spoken.samples[len(made[0][1]) :][: len(made[1][1])]
    assert np.abs(begun - made[1][1][: len(begun)]).max() < 1e-4
    assert len(greedy.say(" ".join(parts), max_tokens=12).frames) == 12, "the bound is the whole utterance's"


def test_a_long_text_is_looked_at_block_by_block(greedy: SpeechHarness) -> None:
    parts = list(greedy.talker.adapter._parts("The river runs to the sea. " * 60 + "end " * 200 + "x" * 700))
    assert max(map(len, parts)) <= 500
    assert "".join("".join(parts).split()).startswith("Theriverrunstothesea." * 60 + "endend")


def test_a_seed_repeats_whatever_runs_beside(folder: Path) -> None:
    check_seeds(SpeechHarness(PIPELINE, folder, max_frames=FRAMES), TEXTS)


@pytest.mark.parametrize(("first", "longest"), [(1, 1), (3, 5), (100, 100)])
def test_sound_does_not_depend_on_how_it_is_cut(folder: Path, greedy: SpeechHarness, first: int, longest: int) -> None:
    codec = {"first_chunk_frames": first, "min_chunk_frames": 1, "chunk_frames": longest}
    cut = SpeechHarness(PIPELINE, folder, codec=codec, temperature=0.0, max_frames=30)
    assert np.abs(cut.say(TEXTS[1]).samples - greedy.say(TEXTS[1], max_tokens=30).samples).max() < 1e-4


def test_the_checkpoint_names_its_voices(folder: Path, greedy: SpeechHarness) -> None:
    assert describe(folder).voices == ("alba", "jean")
    assert refusal(greedy, voice="Ada") == (400, "voice")
