"""asyncio programs: cancellation at every point, streams that lose no event, and the end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from omni_actors import AsyncioOmni, OmniError, Sampling, open_omni, open_omni_asyncio
from omni_actors.entrypoints.offline.deployment import AsyncOmni
from omni_actors.protocol.request import Completed, TextDelta

ENDLESS = Sampling(max_tokens=1_000_000)


def run(test: Callable[[AsyncioOmni], Awaitable[None]], *overrides: str) -> None:
    """Run a test with a deployment; at its end no request is left in it. The test's alarm bounds the wait."""

    async def main() -> None:
        async with open_omni_asyncio("stub-voice", platform="cpu", overrides=overrides) as omni:
            await test(omni)
            await asyncio.wrap_future(omni._portal.submit(_idle, omni._omni))

    asyncio.run(main())


async def _idle(omni: AsyncOmni) -> None:
    while omni.orchestrator.inflight:
        await omni.orchestrator.vacant.park()


def test_a_stream_whose_reader_was_cancelled_has_lost_no_event() -> None:
    async def test(omni: AsyncioOmni) -> None:
        asked = Sampling(max_tokens=40)
        texts: list[str] = []
        cut = 0
        async with omni.stream.chat("x", asked) as stream:
            while True:
                try:
                    async with asyncio.timeout(0.001):
                        event = await anext(stream)
                except TimeoutError:
                    cut += 1
                    continue
                if isinstance(event, Completed):
                    break
                assert isinstance(event, TextDelta)
                texts.append(event.text)
            with pytest.raises(StopAsyncIteration):
                await anext(stream)
        assert cut
        assert "".join(texts) == (await omni.chat("x", asked)).text

    run(test, "stages.writer.options.step_s=0.003")


def test_a_stream_that_is_not_entered_raises() -> None:
    async def test(omni: AsyncioOmni) -> None:
        stream = omni.stream.chat("x")
        with pytest.raises(RuntimeError, match="async with"):
            async for _ in stream:
                pass
        with pytest.raises(RuntimeError, match="async with"):
            await stream.feed("text", "text")

    run(test)


def test_cancelling_at_any_moment_ends_the_request_and_nothing_else() -> None:
    async def test(omni: AsyncioOmni) -> None:
        async def use() -> None:
            async with omni.stream.chat("x", ENDLESS) as stream:
                async for _ in stream:
                    pass

        for turns in range(0, 40, 2):
            for ask in (omni.chat("x", ENDLESS), use()):
                task = asyncio.create_task(ask)
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
        assert len((await omni.chat("x", Sampling(max_tokens=3))).text.split()) == 3

    run(test)


def test_the_start_can_be_cancelled_and_leaves_nothing() -> None:
    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                async with open_omni_asyncio("stub", platform="cpu", overrides=["stages.b.options.load_s=20"]):
                    pass
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())


def test_a_start_that_fails_says_why() -> None:
    async def main() -> None:
        with pytest.raises(OmniError):
            async with open_omni_asyncio("no-such-pipeline"):
                pass

    asyncio.run(main())


def test_open_omni_under_asyncio_names_the_alternative() -> None:
    async def main() -> None:
        async with open_omni("stub"):
            pass

    with pytest.raises(RuntimeError, match="open_omni_asyncio"):
        asyncio.run(main())


def test_requests_of_a_block_that_is_left_are_over() -> None:
    async def main() -> list[Any]:
        async with open_omni_asyncio("stub-voice", platform="cpu") as omni:
            tasks = [asyncio.create_task(omni.chat("x", ENDLESS)) for _ in range(3)]
            async with omni.stream.chat("x", ENDLESS) as stream:
                await anext(stream)
        return await asyncio.gather(*tasks, return_exceptions=True)

    assert all(isinstance(it, asyncio.CancelledError) for it in asyncio.run(main()))
