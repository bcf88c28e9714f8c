"""How well the demo speaks and hears, over HTTP: word error rates of real speech."""

from __future__ import annotations

import io
import re

import numpy as np
import pocketsphinx
import pytest
import soundfile
import soxr
from openai import OpenAI
from tests.models.omni_demo.recordings import Samples, recordings

from .server import Server

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


def by_sphinx(decoder: pocketsphinx.Decoder, samples: Samples, rate: int) -> str:
    """What an old recogniser of another kind hears (hidden Markov models, no neural net)."""
    low = soxr.resample(samples, rate, 16_000)
    decoder.start_utt()
    decoder.process_raw((np.clip(low, -1, 1) * 32767).astype("<i2").tobytes(), full_utt=True)
    decoder.end_utt()
    found = decoder.hyp()
    return "" if found is None else found.hypstr


def wav_of(samples: Samples, rate: int) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format="WAV", subtype="PCM_16")
    return file.getvalue()


def said(client: OpenAI, sentence: str) -> bytes:
    return client.audio.speech.create(model="omni-demo", voice="alloy", input=sentence, response_format="wav").read()


def heard(client: OpenAI, wav: bytes) -> str:
    return client.audio.transcriptions.create(model="omni-demo", file=("clip.wav", wav)).text


def test_what_is_said_is_understood(server: Server) -> None:
    """Twenty sentences said over HTTP, then heard by pocketsphinx, which shares nothing with the voice, and by the
    server's own recogniser."""
    client = OpenAI(base_url=f"{server.url}/v1", api_key="none")
    decoder = pocketsphinx.Decoder(samprate=16_000, loglevel="FATAL")
    errors = []
    for sentence in SENTENCES:
        wav = said(client, sentence)
        samples, rate = soundfile.read(io.BytesIO(wav), dtype="float32")
        own, other = heard(client, wav), by_sphinx(decoder, samples, rate)
        errors.append((word_errors(sentence, own), word_errors(sentence, other)))
        print(f"{errors[-1]} | {sentence} | {own} | {other}")
    own_mean, other_mean = np.mean(errors, 0)
    print(f"mean word error rate: own recogniser {own_mean:.3f}, pocketsphinx {other_mean:.3f}")
    assert own_mean <= 0.05
    assert other_mean <= 0.10


def test_what_was_recorded_is_understood(server: Server) -> None:
    client = OpenAI(base_url=f"{server.url}/v1", api_key="none")
    clips = recordings()
    assert len(clips) >= 10
    errors: list[float] = []
    for clip in clips:
        text = heard(client, wav_of(clip.samples, clip.rate))
        errors.append(word_errors(clip.words, text))
        print(f"{errors[-1]:.2f} | {clip.words} | {text}")
    print(f"mean word error rate over {len(clips)} recordings: {np.mean(errors):.3f}")
    assert np.mean(errors) <= 0.15


@pytest.mark.parametrize("text", ["1", "A", "No.", "42", "Hi"])
def test_a_word_is_as_long_as_a_word(server: Server, text: str) -> None:
    """The sound of the shortest inputs does not go on past its text."""
    client = OpenAI(base_url=f"{server.url}/v1", api_key="none")
    reply = client.audio.speech.create(model="omni-demo", voice="heart", input=text, response_format="pcm")
    assert 0.1 < len(reply.content) / 2 / 24_000 < 3


@pytest.mark.parametrize("text", ["Привет, мир!", "გამარჯობა", "&nbsp;&zwj;"])
def test_a_text_that_has_nothing_for_this_voice_is_refused(server: Server, text: str) -> None:
    status, body = server.post("/v1/audio/speech", {"model": "omni-demo", "voice": "heart", "input": text})
    assert (status, body["error"]["param"], body["error"]["type"]) == (400, "input", "invalid_request_error")
