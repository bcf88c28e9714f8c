"""What a call has opened is closed as the standard library's stack would, whatever raises on the way."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from omni_actors.entrypoints.http import Opened

Enter = Callable[[AbstractAsyncContextManager[Any]], Awaitable[Any]]


class Boom(Exception):
    pass


@asynccontextmanager
async def manager(name: int, how: str, log: list[str]) -> AsyncIterator[int]:
    if how == "no entry":
        raise Boom(f"entry {name}")
    log.append(f"enter {name}")
    try:
        yield name
    except Exception as error:
        log.append(f"leave {name} by {error}")
        if how != "suppresses":
            raise
    else:
        log.append(f"leave {name}")
    if how == "raises":
        raise Boom(f"exit {name}")


async def use(stack: AbstractAsyncContextManager[Any], enter: Enter, hows: list[str], fails: bool) -> list[str]:
    log: list[str] = []
    raised: BaseException | None = None
    try:
        async with stack:
            for name, how in enumerate(hows):
                assert await enter(manager(name, how, log)) == name
            if fails:
                raise Boom("body")
    except Boom as error:
        raised = error
    while raised is not None:
        log.append(f"out: {raised}")
        raised = raised.__context__
    return log


HOW = st.sampled_from(["plain", "suppresses", "raises", "no entry"])


@given(hows=st.lists(HOW, max_size=4), fails=st.booleans())
def test_it_closes_as_the_standard_librarys_stack(hows: list[str], fails: bool) -> None:
    async def main() -> None:
        opened, stack = Opened(), AsyncExitStack()
        assert await use(opened, opened.enter, hows, fails) == await use(stack, stack.enter_async_context, hows, fails)

    trio.run(main)


@pytest.mark.parametrize("count", [1, 2])
async def test_a_cancelled_call_closes_what_it_has_opened(count: int) -> None:
    log: list[str] = []
    with trio.CancelScope() as scope:
        async with Opened() as opened:
            for name in range(count):
                await opened.enter(noted(name, log))
            scope.cancel()
            await trio.lowlevel.checkpoint()
    assert scope.cancelled_caught
    assert log == [f"left {name} cancelled" for name in reversed(range(count))]


@asynccontextmanager
async def noted(name: int, log: list[str]) -> AsyncIterator[None]:
    try:
        yield
    except trio.Cancelled:
        log.append(f"left {name} cancelled")
        raise
