"""Each entry has its time, and none that was discarded before it."""

from __future__ import annotations

import trio
from trio.testing import MockClock

from omni_actors.orchestrator.deadlines import Deadlines, UniformTimeouts


async def test_what_expires_may_discard_others_of_the_same_moment_and_later(autojump_clock: MockClock) -> None:
    expired: list[str] = []
    slots: dict[str, int] = {}

    def expire(item: str) -> None:
        expired.append(item)
        if item == "first":
            for other in ("second", "third"):
                deadlines.discard(other, slots[other])

    deadlines: Deadlines[str] = Deadlines(expire)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(deadlines.run)
        now = trio.current_time()
        slots |= {item: deadlines.add(item, now + 1.0) for item in ("first", "second", "last")}
        slots["third"] = deadlines.add("third", now + 1.06)
        # This process stood still meanwhile: both slots are due at once.
        autojump_clock.jump(2.0)
        await trio.sleep(1.0)
        nursery.cancel_scope.cancel()
    assert expired == ["first", "last"]
    assert not len(deadlines)


async def test_who_exhausts_a_patience_is_told_once_each_in_order(autojump_clock: MockClock) -> None:
    told: list[tuple[str, float]] = []

    def expire(item: str) -> None:
        told.append((item, trio.current_time() - began))
        if item == "again" and len(told) < 3:
            patience.add(item)
        if item == "first":
            patience.discard("beside")

    patience: UniformTimeouts[str] = UniformTimeouts(1.0, expire)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(patience.run)
        began = trio.current_time()
        for item in ("gone", "first", "beside"):
            patience.add(item)
        patience.discard("gone")  # its time wakes nobody else early
        await trio.sleep(0.5)
        patience.add("again")
        await trio.sleep(5.0)
        assert not len(patience)
        patience.add("late")  # nobody was in it
        await trio.sleep(1.5)
        nursery.cancel_scope.cancel()
    assert [item for item, _ in told] == ["first", "again", "again", "late"]
    assert [round(at, 6) for _, at in told] == [1.0, 1.5, 2.5, 6.5]
