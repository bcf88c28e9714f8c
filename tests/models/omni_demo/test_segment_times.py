"""Times of segments are those of the sound, wherever silence or noise lies in a clip."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import soxr
from hypothesis import given
from hypothesis import strategies as st
from tests.models.omni_demo.harness import Stage, Voice, hear, samples_of

from omni_actors.models.omni_demo.condensed import EDGE_S, PAUSE_S, condense, drawn_to_voice
from omni_actors.models.omni_demo.pipeline import SAMPLE_RATE
from omni_actors.models.omni_demo.voice_activity import FRAME, VoiceTrack
from omni_actors.models.omni_demo.whisper import Segment

RATE = 16_000
TOLERANCE_S = 1.0

Samples = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True)
class Sentence:
    samples: Samples
    word: str
    """A word that is in no other sentence."""


@pytest.fixture(scope="module")
def sentences(voice: Voice) -> list[Sentence]:
    def said(text: str, word: str) -> Sentence:
        return Sentence(soxr.resample(samples_of(voice.say(text)), SAMPLE_RATE, RATE), word)

    return [
        said("The children were playing in the garden behind the old stone wall.", "children"),
        said("She bought two apples, three pears and a loaf of bread.", "apples"),
        said("The train to the city leaves every hour in the afternoon.", "train"),
    ]


def noise(seconds: float, loudness: float) -> Samples:
    return np.random.default_rng(0).standard_normal(int(seconds * RATE)).astype(np.float32) * np.float32(loudness)


CASES: dict[str, list[float | int]] = {
    # A float is that many seconds without voice; an int says which sentence.
    "a minute begins with 35 s of silence": [35.0, 0],
    "a gap of 40 s": [0, 40.0, 1],
    "a short clip begins with 10 s of silence": [10.0, 2],
    "a short clip with a gap": [0, 18.0, 1, 2.0],
    "words at the end of a window": [28.0, 0, 5.0, 1],
    "silence behind": [0, 33.0],
    "several": [7.0, 0, 9.0, 1, 14.0, 2, 3.0, 0, 33.0, 1],
}


NOISY = ["a minute begins with 35 s of silence", "a gap of 40 s"]


@pytest.mark.weights
@pytest.mark.parametrize(("name", "loudness"), [*((name, 0.0) for name in CASES), *((name, 0.01) for name in NOISY)])
def test_a_segment_begins_and_ends_with_its_sound(
    recogniser: Stage, sentences: list[Sentence], name: str, loudness: float
) -> None:
    parts: list[Samples] = []
    spoken: list[tuple[float, float, str]] = []
    at = 0.0
    for part in CASES[name]:
        sentence = sentences[part] if isinstance(part, int) else None
        samples = noise(float(part), loudness) if sentence is None else sentence.samples
        if sentence is not None:
            spoken.append((at, at + len(samples) / RATE, sentence.word))
        parts.append(samples)
        at += len(samples) / RATE
    _, deltas = hear(recogniser, np.concatenate(parts), RATE, timestamps="segment")
    segments = [segment for delta in deltas for segment in (delta.meta or {})["segments"]]
    found = [(segment["start"], segment["end"], segment["text"]) for segment in segments]
    print(found)
    assert len(found) == len(spoken)
    for (start, end, text), (begins, ends, word) in zip(found, spoken, strict=True):
        assert word in text
        assert abs(start - begins) <= TOLERANCE_S
        assert abs(end - ends) <= TOLERANCE_S
    assert all(a[1] <= b[0] for a, b in pairwise(found))


def track_of(stretches: list[tuple[bool, int]]) -> tuple[Samples, VoiceTrack]:
    """Sound and silence by turns, each of so many frames; voice is told by loudness."""
    loud = np.repeat([loud for loud, _ in stretches], [frames for _, frames in stretches]).astype(np.float32)
    samples = np.repeat(loud, FRAME) * np.float32(0.5)
    return samples, VoiceTrack(None, 0.5, samples)


STRETCHES = st.lists(st.tuples(st.booleans(), st.integers(1, 150)), max_size=8)
"""Up to 4.8 s each: pauses on both sides of what counts as long."""


@given(STRETCHES, st.integers(8, 200))
def test_condensed_parts_hold_all_voice_once_and_no_long_pause(stretches: list[tuple[bool, int]], frames: int) -> None:
    samples, track = track_of(stretches)
    start, most, kept = 0, frames * FRAME, np.zeros(len(samples), np.int64)
    while start < len(samples):
        part = condense(track, len(samples), start, most)
        if part is None:
            continue
        sound = part.cut(samples)
        assert len(sound) <= most
        assert all(a < b for a, b in part.ranges)
        assert all(b + (PAUSE_S - 2 * EDGE_S) * RATE - 2 * FRAME <= c for (_, b), (c, _) in pairwise(part.ranges))
        for begin, end in part.ranges:
            kept[begin:end] += 1
        lengths = np.cumsum([0, *(end - begin for begin, end in part.ranges)])
        for (begin, end), before, after in zip(part.ranges, lengths, lengths[1:], strict=False):
            assert part.place(before / RATE) == begin
            assert part.place(after / RATE, ends=True) == end
        assert part.place(len(sound) / RATE + 1) == part.end
        start = part.end
    assert kept.max(initial=0) <= 1
    assert kept[samples > 0].all()


SEGMENTS = st.lists(st.tuples(st.floats(0, 20), st.floats(0, 20)), max_size=8)


@given(STRETCHES, SEGMENTS)
def test_segments_that_are_drawn_to_voice_stay_in_order(
    stretches: list[tuple[bool, int]], lengths: list[tuple[float, float]]
) -> None:
    samples, track = track_of(stretches)
    track.hear(len(samples) // FRAME)
    segments, at = [], 0.0
    for gap, length in lengths:
        segments.append(Segment(at + gap, at + gap + length, "", []))
        at += gap + length
    found = drawn_to_voice(segments, track)
    assert len(found) == len(segments)
    times = [time for segment in found for time in (segment.start, segment.end)]
    assert times == sorted(times)


def test_a_stretch_of_voice_is_left_to_the_segment_that_has_most_of_it() -> None:
    """What Whisper says of three sentences behind silences, on the sound that they have."""
    second = RATE // FRAME
    samples, track = track_of(
        [(False, 7 * second), (True, 4 * second), (False, 9 * second), (True, 4 * second), (False, 14 * second)]
    )
    track.hear(len(samples) // FRAME)
    found = drawn_to_voice([Segment(0.0, 20.3, "one", []), Segment(20.3, 37.9, "two", [])], track)
    assert [(round(it.start), round(it.end)) for it in found] == [(7, 11), (20, 24)]
