"""Each entry has its time, and none that was discarded before it."""

from __future__ import annotations

import trio
from trio.testing import MockClock

from omni_actors.orchestrator.deadlines import Deadlines


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
