"""Mixing to one channel: opposed channels stay heard, everything else is the plain mean."""

from __future__ import annotations

import struct
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.media.harness import MediaHarness, flac, loudness

from omni_actors.media import questions as q
from omni_actors.media.wav import wav_header
from omni_actors.media.worker.mixing import Float32, Mixer

RATE = 8_000


def mix(sound: Float32, cuts: list[int], rate: int = RATE) -> Float32:
    mixer = Mixer(rate, len(sound))
    places = [0, *sorted(cuts), sound.shape[1]]
    pieces = [mixer.add(sound[:, a:b]) for a, b in pairwise(places)]
    return np.concatenate([*pieces, mixer.finish()])


def voice(seconds: float = 1.0, seed: int = 0) -> Float32:
    """Noise that comes and goes, as speech does."""
    made = np.random.default_rng(seed).standard_normal(int(seconds * RATE)) * 0.2
    return np.asarray(made * (0.5 + 0.5 * np.sin(np.arange(len(made)) / 900)), np.float32)


ORDINARY: dict[str, Float32] = {
    "one sound on both": np.stack([voice(), voice()]),
    "one side": np.stack([voice(), np.zeros(RATE, np.float32)]),
    "two sounds": np.stack([voice(seed=1), voice(seed=2)]),
    "a wide stereo image": np.stack([voice(seed=1) + 0.7 * voice(seed=2), voice(seed=1) - 0.7 * voice(seed=2)]),
    "a little late on one side": np.stack([voice(), np.roll(voice(), 5)]),
    "silence": np.zeros((2, RATE), np.float32),
    "five channels": np.stack([voice(seed=seed) for seed in range(5)]),
}


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_sound_is_the_plain_mean_to_the_bit(name: str) -> None:
    sound = ORDINARY[name]
    assert np.array_equal(mix(sound, [1, 700, 701, 5000]), sound.mean(axis=0, dtype=np.float32))


@pytest.mark.parametrize("share", [1.0, 0.8, 0.6])
@pytest.mark.parametrize("channels", [2, 4])
def test_opposed_channels_are_as_loud_as_one_of_them(channels: int, share: float) -> None:
    """Also where one side is quieter; and a file of four channels with two of them turned round."""
    sound = np.stack([voice() if place % 2 == 0 else -share * voice() for place in range(channels)])
    assert loudness(sound.mean(axis=0)) <= 0.2 * loudness(voice())
    assert loudness(mix(sound, [])) == pytest.approx((1 + share) / 2 * loudness(voice()), rel=0.01)


def test_a_stretch_in_opposite_phase_is_heard_without_a_click() -> None:
    tone = np.asarray(0.3 * np.sin(2 * np.pi * 200 * np.arange(3 * RATE) / RATE), np.float32)
    sign = np.ones_like(tone)
    sign[RATE : 2 * RATE] = -1
    mixed = mix(np.stack([tone, sign * tone]), [])
    for second in range(3):
        assert loudness(mixed[second * RATE : (second + 1) * RATE]) == pytest.approx(loudness(tone), rel=0.05)
    steps = np.abs(np.diff(mixed))
    assert steps.max() < 1.1 * np.abs(np.diff(tone)).max()


@given(st.lists(st.integers(0, RATE), max_size=6), st.sampled_from([1.0, -1.0, 0.0]), st.integers(0, 3))
def test_how_the_sound_is_cut_changes_nothing(cuts: list[int], share: float, seed: int) -> None:
    half = np.where(np.arange(RATE) < RATE // 2, 1.0, share).astype(np.float32)
    sound = np.stack([voice(seed=seed), half * voice(seed=seed)])
    assert np.array_equal(mix(sound, cuts), mix(sound, []))


def stereo(left: Float32, right: Float32) -> bytes:
    pcm = (np.stack([left, right], axis=1) * 32_767).astype("<i2").tobytes()
    return wav_header(RATE, 2, len(pcm)) + pcm


@pytest.mark.parametrize("kind", ["wav", "pcm", "flac"])
def test_a_file_in_opposite_phase_is_heard(kind: str) -> None:
    harness = MediaHarness()
    data, type_ = stereo(voice(), -voice()), None
    if kind == "pcm":
        data, type_ = data[44:], f"audio/pcm;rate={RATE};channels=2"
    elif kind == "flac":
        data = flac(np.stack([voice(), -voice()]), RATE)
    info = q.parse(harness.ask(q.Decode(owner="o", data=data, content_type=type_)), q.MediumInfo)
    (samples,) = harness.deliver([info.id])
    assert loudness(samples) == pytest.approx(loudness(voice()), rel=0.05)


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
def test_a_channel_without_numbers_does_not_silence_the_others(broken: float) -> None:
    pcm = np.stack([np.full(RATE, broken, np.float32), voice()], axis=1).astype("<f4").tobytes()
    header = struct.pack(
        "<4sI8sIHHIIHH4sI", b"RIFF", 36 + len(pcm), b"WAVEfmt ", 16, 3, 2, RATE, RATE * 8, 8, 32, b"data", len(pcm)
    )
    harness = MediaHarness()
    info = q.parse(harness.ask(q.Decode(owner="o", data=header + pcm)), q.MediumInfo)
    (samples,) = harness.deliver([info.id])
    assert loudness(samples - samples.mean()) == pytest.approx(loudness(voice()) / 2, rel=0.05)
