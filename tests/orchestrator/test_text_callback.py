"""Text that is taken where it comes, without waking its receiver."""

from __future__ import annotations

import trio

from omni_actors.protocol.request import Completed, TextDelta

from .spine import stub, stub_orchestrator

TOKENS = 500


async def test_what_is_taken_is_no_event_and_nothing_is_lost_or_out_of_order() -> None:
    """Some of it is refused, some comes while the receiver is at something else."""
    async with stub_orchestrator() as orchestrator:
        got: list[int] = []
        taken = woken = 0

        def take(delta: TextDelta) -> bool:
            nonlocal taken
            if delta.token_ids[0] % 7 == 0:
                return False
            taken += 1
            got.extend(delta.token_ids)
            return True

        async with orchestrator.open(stub("tokens", tokens=TOKENS)) as stream:
            stream.set_text_callback(take)
            async for event in stream:
                if isinstance(event, TextDelta):
                    got.extend(event.token_ids)
                    woken += 1
                    if woken % 10 == 0:
                        await trio.sleep(0.002)
        assert isinstance(event, Completed)
        assert got == list(reversed(range(TOKENS)))
        assert taken
        assert woken >= TOKENS // 7


async def test_nothing_is_taken_of_a_request_that_is_left() -> None:
    async with stub_orchestrator() as orchestrator:
        taken: list[TextDelta] = []

        def take(delta: TextDelta) -> bool:
            taken.append(delta)
            return len(taken) < 10

        async with orchestrator.open(stub("tokens", tokens=1_000_000)) as stream:
            stream.set_text_callback(take)
            assert await stream.receive() is taken[-1]
        before = len(taken)
        assert before >= 10
        with trio.fail_after(5):
            while orchestrator.inflight:
                await trio.sleep(0.002)
        assert len(taken) == before
