"""The sizes of pieces of sound, on a clock that the test sets."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from omni_actors.worker.engines.oneshot.ramp import Ramp

FRAME_S = 0.08


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


def play(ramp: Ramp, clock: Clock, pace: float, pieces: int) -> list[int]:
    """Sizes, when a frame takes ``pace`` times its own length to come and each piece leaves as soon as it is whole."""
    sizes = []
    for _ in range(pieces):
        frames = ramp.wanted
        clock.now += frames * FRAME_S * pace
        assert ramp.take(frames) == frames
        ramp.cut(frames, frames * FRAME_S)
        sizes.append(frames)
    return sizes


def test_pieces_grow_while_frames_come_faster_than_they_are_played() -> None:
    clock = Clock()
    sizes = play(Ramp(FRAME_S, 2, 2, 32, clock=clock), clock, pace=0.3, pieces=20)
    assert sizes[0] == 2
    assert sizes == sorted(sizes)
    assert sizes[-1] == 32
    assert all(b <= 2 * a for a, b in itertools.pairwise(sizes))


def test_at_the_listeners_own_pace_pieces_stay_small() -> None:
    clock = Clock()
    assert max(play(Ramp(FRAME_S, 4, 2, 32, clock=clock), clock, pace=1.0, pieces=20)[1:]) <= 2


def test_pieces_shrink_when_the_buffer_drains_and_grow_again() -> None:
    clock = Clock()
    ramp = Ramp(FRAME_S, 2, 2, 32, clock=clock)
    assert play(ramp, clock, pace=0.3, pieces=20)[-1] == 32
    clock.now += ramp.buffer_s - 0.5
    assert ramp.wanted == int(0.5 * 0.5 / FRAME_S)
    clock.now += 10
    assert ramp.buffer_s < 0
    assert ramp.wanted == 2
    assert play(ramp, clock, pace=0.01, pieces=400)[-1] == 32


def test_the_buffer_never_runs_dry_at_a_steady_pace_faster_than_play() -> None:
    clock = Clock()
    ramp = Ramp(FRAME_S, 4, 2, 50, clock=clock)
    for _ in range(50):
        frames = ramp.wanted
        clock.now += frames * FRAME_S * 0.6
        assert ramp.buffer_s >= 0
        ramp.cut(frames, frames * FRAME_S)


def test_what_waits_already_makes_pieces_grow_whatever_the_buffer() -> None:
    clock = Clock()
    ramp = Ramp(FRAME_S, 2, 2, 16, clock=clock)
    sizes = []
    for _ in range(6):
        clock.now += 1000  # the buffer is empty all the time
        sizes.append(ramp.take(1000))
        ramp.cut(sizes[-1], sizes[-1] * FRAME_S)
    assert sizes == [2, 4, 8, 16, 16, 16]


def test_without_the_ramp_all_pieces_but_the_first_have_the_full_size() -> None:
    clock = Clock()
    assert play(Ramp(FRAME_S, 3, 1, 20, adaptive=False, clock=clock), clock, pace=5.0, pieces=4) == [3, 20, 20, 20]


@given(
    first=st.integers(1, 100),
    least=st.integers(1, 100),
    most=st.integers(1, 50),
    waits=st.lists(st.tuples(st.integers(1, 200), st.floats(0, 3)), max_size=30),
    adaptive=st.booleans(),
)
def test_sizes_stay_within_their_bounds(
    first: int, least: int, most: int, waits: list[tuple[int, float]], adaptive: bool
) -> None:
    clock = Clock()
    ramp = Ramp(FRAME_S, first, least, most, adaptive, clock)
    for waiting, seconds in waits:
        clock.now += seconds
        assert 1 <= ramp.wanted <= most
        frames = ramp.take(waiting)
        assert 1 <= frames <= min(waiting, most)
        ramp.cut(frames, frames * FRAME_S)
