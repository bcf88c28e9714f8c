"""The least rate of what is waited for."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from omni_actors.entrypoints.server.minimum_rate import MinimumRate


async def waited(pace: MinimumRate, seconds: float, size: int) -> None:
    pace.begin()
    await trio.sleep(seconds)
    pace.came(size)


async def test_silence_is_allowed_for_as_long_as_the_patience(autojump_clock: MockClock) -> None:
    pace = MinimumRate(100, 30)
    assert pace.begin() == 30
    await trio.sleep(29)
    assert pace.waits
    assert pace.left_s == pytest.approx(1)
    await trio.sleep(2)
    assert pace.left_s == pytest.approx(-1)


async def test_who_keeps_the_rate_may_go_on_for_ever(autojump_clock: MockClock) -> None:
    pace = MinimumRate(100, 5)
    for _ in range(1000):
        await waited(pace, 1, 101)
    assert pace.left_s == pytest.approx(5)


async def test_a_slow_sender_is_ended_even_after_a_fast_start(autojump_clock: MockClock) -> None:
    """A fast beginning buys no more than the patience."""
    pace = MinimumRate(100, 5)
    await waited(pace, 1, 1_000_000)
    seconds = 0
    while pace.left_s > 0:
        await waited(pace, 1, 50)
        seconds += 1
    assert seconds == 10


async def test_time_without_a_waiting_task_does_not_count(autojump_clock: MockClock) -> None:
    pace = MinimumRate(100, 5)
    await waited(pace, 4, 0)
    await trio.sleep(1000)
    assert not pace.waits
    assert pace.left_s == pytest.approx(1)


async def test_without_a_rate_any_byte_is_enough(autojump_clock: MockClock) -> None:
    pace = MinimumRate(0, 5)
    for _ in range(100):
        await waited(pace, 4.9, 1)
    assert pace.left_s == 5
