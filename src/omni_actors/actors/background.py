"""A nursery for tasks that run beside a block."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio


@asynccontextmanager
async def background(stop: Callable[[], None] | None = None) -> AsyncIterator[trio.Nursery]:
    """Open a nursery whose tasks live no longer than the block.

    >>> import trio
    >>> from omni_actors.actors.background import background
    >>> async def main() -> None:
    ...     async with background() as nursery:
    ...         nursery.start_soon(trio.sleep_forever)
    ...     print("the sleeper is cancelled")
    >>> trio.run(main)
    the sleeper is cancelled

    Args:
        stop: Called when the block is left; then the tasks are waited for. Without ``stop`` the tasks are cancelled.

    Yields:
        The nursery.

    Raises:
        BaseException: An exception of the block (a cancellation too) comes out unchanged, not wrapped in the nursery's
            group. An exception of a task cancels the block and comes out in a group.
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
