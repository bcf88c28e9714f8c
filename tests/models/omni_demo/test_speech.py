"""The demo's voice on its real weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.models.omni_demo.harness import Stage, Voice
from tests.models.stage_harness import Kept

from omni_actors.connectors.payload import Payload, text_payload
from omni_actors.models.omni_demo.bridges import Sentences
from omni_actors.models.omni_demo.pipeline import SAMPLE_RATE, VOICE
from omni_actors.models.omni_demo.sentences import LIMIT
from omni_actors.protocol.errors import OmniError
from omni_actors.protocol.params import Speech

pytestmark = pytest.mark.weights

TEXT = "The capital of France is Paris. It costs $5.99, e.g. today. Shall we go?"
SENTENCES = 3

MAX_FRAMES = 800
"""What a step may make at most, 10 s of sound."""


def seconds(pcm: bytes) -> float:
    return len(pcm) / 2 / SAMPLE_RATE


def test_a_text_becomes_one_payload_per_sentence_in_order(voice: Voice) -> None:
    payloads = voice.spectra(text=TEXT)
    assert [payload.meta["index"] for payload in payloads] == list(range(SENTENCES))
    frames = [payload.tensors["f0"].shape[0] for payload in payloads]
    assert [payload.tensors["lh"].shape for payload in payloads] == [(601, n) for n in frames]
    assert all(n > 40 for n in frames)


def test_sound_leaves_in_small_pieces_the_first_the_smallest(voice: Voice) -> None:
    voice.vocoder.admit(None, "frames", voice.spectra(text=TEXT))
    chunks = voice.vocoder.run().media_chunks
    sizes = [len(chunk.data) // 2 for chunk in chunks]
    assert sizes[0] == SAMPLE_RATE // 10
    assert max(sizes) == SAMPLE_RATE // 2
    assert all(chunk.meta == {"sample_rate": SAMPLE_RATE, "channels": 1} for chunk in chunks)


def test_the_same_request_sounds_the_same_and_another_seed_does_not(voice: Voice) -> None:
    first = voice.say(TEXT, seed=7)
    assert voice.say(TEXT, seed=7) == first
    assert voice.say(TEXT, seed=-1) != first
    assert len(voice.say(TEXT, seed=8)) == len(first)


FIGURES = ["1,", "12,", "1,000,", "1.", "1/2 ", "12:34:", "$1,", "9", "IX ", "1st", "-1,", "5%", "A.", "½"]


@pytest.mark.parametrize("piece", FIGURES)
def test_a_row_of_figures_can_be_read(voice: Voice, piece: str) -> None:
    text = piece * (LIMIT // len(piece))
    assert len(voice.spectra(text=text)) > 0


def test_every_known_name_is_the_one_voice(voice: Voice) -> None:
    first = voice.say("Hello.")
    assert all(voice.say("Hello.", voice=name) == first for name in (VOICE, "default", "Heart"))


def test_sentences_of_an_answer_sound_as_in_a_text_that_is_given_whole(voice: Voice) -> None:
    bridge = Sentences()
    payloads = [text_payload(word + " ") for word in TEXT.split()]
    sentences = [s for p in payloads for s in bridge.feed(p, False)] + bridge.feed(None, True)
    voice.acoustic.admit(Speech(), "sentences", sentences, routed=True)
    spectra = [payload for _, payload in voice.acoustic.run().payloads]
    key = voice.vocoder.admit(None, "frames", spectra)
    assert voice.vocoder.run().pcm(key) == voice.say(TEXT)


def test_requests_side_by_side_sound_as_each_alone(voice: Voice) -> None:
    texts = [TEXT, "One two three. Four five six.", "A third voice is in the room, and it goes on."]
    alone = [voice.say(text) for text in texts]
    keys = [voice.acoustic.admit(Speech(text=text), routed=True) for text in texts]
    spectra: dict[int, list[Payload]] = {key: [] for key in keys}
    for key, payload in voice.acoustic.run().payloads:
        spectra[key].append(payload)
    sounding = [voice.vocoder.admit(None, "frames", spectra[key]) for key in keys]
    out = voice.vocoder.run()
    assert [out.pcm(key) for key in sounding] == alone


@pytest.mark.parametrize("speed", [0.25, 0.5, 0.9, 1.25, 2.0, 4.0])
def test_speed_is_honoured(voice: Voice, speed: float) -> None:
    plain = seconds(voice.say(TEXT))
    assert seconds(voice.say(TEXT, speed=speed)) == pytest.approx(plain / speed, rel=0.05)


@pytest.mark.parametrize(
    ("field", "value", "param"),
    [
        ("voice", "nobody", "voice"),
        ("speed", 0.2, "speed"),
        ("speed", 4.1, "speed"),
        ("speed", float("nan"), "speed"),
        ("language", "fr", "language"),
        ("instructions", "whisper", "instructions"),
        ("text", None, "input"),
        ("text", " \n", "input"),
        ("text", "...", "input"),
        ("text", "😀 🎉", "input"),
        ("text", "你好", "input"),
        ("text", "a " * 9000, "input"),
    ],
)
def test_what_cannot_be_done_is_the_clients_mistake(
    voice: Voice, field: str, value: str | float | None, param: str
) -> None:
    with pytest.raises(OmniError) as caught:
        voice.spectra(**{"text": "Hello.", field: value})
    assert (caught.value.info.status, caught.value.info.param) == (400, param)


def test_what_cannot_be_said_is_left_out_of_an_answer(voice: Voice) -> None:
    said = [text_payload("Hello."), text_payload("😀"), text_payload("---"), text_payload("Bye.")]
    key = voice.acoustic.admit(Speech(), "sentences", said, routed=True)
    out = voice.acoustic.run()
    assert len(out.payloads) == 2
    silent = voice.acoustic.admit(Speech(), "sentences", [text_payload("😀")], routed=True)
    assert silent in voice.acoustic.run().done
    assert key in out.done


def test_a_text_of_many_thousand_characters_starts_to_sound_with_its_first_sentence(voice: Voice) -> None:
    key = voice.acoustic.admit(Speech(text=TEXT * 150), routed=True)
    out = Kept()
    voice.acoustic.engine.step(out)
    assert len(out.payloads) == 1
    voice.acoustic.engine.abort(key)


COSTLY = ["1-", "W ", "aB", "9", "$999 ", "a=", "@", "0"]


@pytest.mark.parametrize("piece", COSTLY)
def test_no_step_says_more_than_a_bounded_part(voice: Voice, piece: str) -> None:
    """Whatever the text, each step makes one payload, of no more frames than two ordinary sentences have."""
    key = voice.acoustic.admit(Speech(text=piece * (LIMIT // len(piece)) + " Hello."), routed=True)
    out, steps = Kept(), 0
    while voice.acoustic.engine.runnable and steps < 200:
        before = len(out.payloads)
        voice.acoustic.engine.step(out)
        assert len(out.payloads) - before <= 1
        steps += 1
    assert key in out.done
    frames = [payload.tensors["f0"].shape[0] for _, payload in out.payloads]
    assert max(frames) <= MAX_FRAMES
    assert [payload.meta["index"] for _, payload in out.payloads] == list(range(len(frames)))


@pytest.mark.parametrize("speed", [0.25, 1.0, 4.0])
def test_slow_speech_is_cut_into_more_parts(voice: Voice, speed: float) -> None:
    frames = [payload.tensors["f0"].shape[0] for payload in voice.spectra(text="1-" * 110, speed=speed)]
    assert max(frames) <= MAX_FRAMES


def test_a_long_sentence_shares_the_stage_with_short_ones(voice: Voice) -> None:
    """Three short requests beside one whose single sentence is many parts: it has one turn, then they have theirs."""
    acoustic = voice.acoustic
    long = acoustic.admit(Speech(text="999,999,999,999 " * 13), routed=True)
    out = Kept()
    acoustic.engine.step(out)
    shorts = [acoustic.admit(Speech(text=f"Hello, number {i}."), routed=True) for i in range(3)]
    while not all(key in out.done for key in shorts):
        acoustic.engine.step(out)
    assert [key for key, _ in out.payloads] == [long, *shorts]
    acoustic.run()


def test_where_a_sentence_is_cut_there_is_no_long_silence(voice: Voice) -> None:
    text = " ".join(["the children were playing in the garden behind the old stone wall"] * 3)[:LIMIT]
    assert len(voice.spectra(text=text)) > 1
    loud = np.flatnonzero(np.abs(np.frombuffer(voice.say(text), "<i2")) > 100)
    assert np.diff(loud).max() / SAMPLE_RATE < 0.4


def test_the_parts_of_a_sentence_come_before_the_next_sentence(voice: Voice) -> None:
    def frames(text: str) -> list[int]:
        return [payload.tensors["f0"].shape[0] for payload in voice.spectra(text=text)]

    long, short = "W " * 60 + "W.", "Hello there."
    assert len(frames(long)) > 2
    assert frames(f"{long} Now {short}") == frames(long) + frames(f"Now {short}")


@pytest.mark.parametrize("text", ["supercalifragilistic" * 30, "1" * 300, "x" * 400, "a, " * 300, "Hmm" + "!" * 500])
def test_strange_texts_are_said_somehow(voice: Voice, text: str) -> None:
    pcm = voice.say(text)
    assert 0.3 < seconds(pcm) < 400
    assert np.abs(np.frombuffer(pcm, "<i2")).max() > 1000


def test_a_piece_of_sound_has_the_length_that_the_deployment_says(demo_weights: Path, voice: Voice) -> None:
    vocoder = Stage("vocoder", demo_weights, first_piece_s=0.2, piece_s=0.3)
    vocoder.admit(None, "frames", voice.spectra(text="Hello there."))
    sizes = [len(chunk.data) / 2 / SAMPLE_RATE for chunk in vocoder.run().media_chunks]
    assert sizes[0] == pytest.approx(0.2)
    assert sizes[1] == pytest.approx(0.3)
