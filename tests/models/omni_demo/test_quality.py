"""How well the demo speaks and hears: word error rates over real speech, on the real weights."""

from __future__ import annotations

import re

import numpy as np
import pocketsphinx
import pytest
import soxr
from tests.models.omni_demo.recordings import recordings
from tests.models.omni_demo.room import Stage, Voice, hear, samples_of

from omni_actors.connectors.payload import pcm_payload
from omni_actors.models.omni_demo.pipeline import SAMPLE_RATE
from omni_actors.protocol.params import Transcription

pytestmark = [pytest.mark.weights, pytest.mark.slow, pytest.mark.deadline(300)]

SENTENCES = (
    "The capital of France is Paris.",
    "Please turn left at the next traffic light and stop near the red house.",
    "Streaming speech should start before the whole sentence has been written.",
    "The children were playing in the garden behind the old stone wall.",
    "He opened the window because the room was too warm.",
    "We will meet again on Monday morning at the station.",
    "She bought two apples, three pears and a loaf of bread.",
    "The river runs through the middle of the town.",
    "Nobody knows what the weather will be like next week.",
    "It takes about twenty minutes to walk from here to the school.",
    "My brother plays the guitar and my sister sings.",
    "The doctor told him to drink more water and to sleep longer.",
    "There is a small shop on the corner of our street.",
    "The train to the city leaves every hour in the afternoon.",
    "I have never seen so many stars in the sky.",
    "You can find the answer at the end of the book.",
    "The king and the queen lived in a castle on the hill.",
    "Could you please close the door when you leave?",
    "A good friend is worth more than gold.",
    "They finished the work before the sun went down.",
)


def words(text: str) -> list[str]:
    return re.sub(r"[^a-z0-9' ]+", " ", text.lower()).split()


def word_errors(reference: str, heard: str) -> float:
    """Edits between the two, in words, per word of the reference."""
    expected, found = words(reference), words(heard)
    row = list(range(len(found) + 1))
    for i, want in enumerate(expected, 1):
        diagonal, row[0] = row[0], i
        for j, have in enumerate(found, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (want != have))
    return row[-1] / len(expected)


def by_sphinx(decoder: pocketsphinx.Decoder, samples: np.ndarray, rate: int) -> str:
    """What an old recogniser of another kind hears (hidden Markov models, no neural net)."""
    low = soxr.resample(samples, rate, 16_000)
    decoder.start_utt()
    decoder.process_raw((np.clip(low, -1, 1) * 32767).astype("<i2").tobytes(), full_utt=True)
    decoder.end_utt()
    found = decoder.hyp()
    return "" if found is None else found.hypstr


def test_what_is_said_is_understood(voice: Voice, recogniser: Stage) -> None:
    """Twenty sentences said, then heard by Whisper and by pocketsphinx, which share nothing with the voice."""
    said = [samples_of(voice.say(sentence)) for sentence in SENTENCES]
    keys = [recogniser.admit(Transcription(), "audio", [pcm_payload(samples, SAMPLE_RATE)]) for samples in said]
    heard = {delta.key: delta.text for delta in recogniser.run().texts}
    decoder = pocketsphinx.Decoder(samprate=16_000, loglevel="FATAL")
    errors = []
    for sentence, samples, key in zip(SENTENCES, said, keys, strict=True):
        other = by_sphinx(decoder, samples, SAMPLE_RATE)
        errors.append((word_errors(sentence, heard[key]), word_errors(sentence, other)))
        print(f"{errors[-1]} | {sentence} | {heard[key]} | {other}")
    whisper, sphinx = np.mean(errors, 0)
    print(f"mean word error rate: Whisper {whisper:.3f}, pocketsphinx {sphinx:.3f}")
    assert whisper <= 0.05
    assert sphinx <= 0.10


def test_what_was_recorded_is_understood(recogniser: Stage) -> None:
    clips = recordings()
    assert len(clips) >= 10
    errors: list[float] = []
    for clip in clips:
        heard = hear(recogniser, clip.samples, clip.rate)[0]
        errors.append(word_errors(clip.words, heard))
        print(f"{errors[-1]:.2f} | {clip.words} | {heard}")
    print(f"mean word error rate over {len(clips)} recordings: {np.mean(errors):.3f}")
    assert np.mean(errors) <= 0.15
