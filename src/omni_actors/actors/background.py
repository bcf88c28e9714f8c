"""A nursery for what runs beside a block."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio


@asynccontextmanager
async def background(stop: Callable[[], None] | None = None) -> AsyncIterator[trio.Nursery]:
    """A nursery whose tasks live no longer than the block.

    When the block is left, ``stop()`` is called if given and the tasks are waited for; without it they are cancelled.
    What the block raises (a cancellation too) comes out as it is, not wrapped in the nursery's group; what a task
    raises cancels the block and comes out in a group.
    """
    failure: BaseException | None = None
    async with trio.open_nursery() as nursery:
        try:
            yield nursery
        except BaseException as exception:
            failure = exception  # raised below
        (stop or nursery.cancel_scope.cancel)()
    if failure is not None:
        raise failure
