"""One answer for all who ask at the same time."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import trio

T = TypeVar("T")


class SingleFlight(Generic[T]):
    """What is costly to find out, and asked for by anybody: it is found out by one at a time.

    Everybody gets an answer whose making began after they asked; all who wait by then have the same one. Raises what
    ``make`` raises. When the task that makes it is cancelled, the next one begins anew.
    """

    def __init__(self, make: Callable[[], Awaitable[T]]) -> None:
        self._make = make
        self._turn = trio.Lock()
        self._begun = -math.inf
        self._made: list[T] = []

    async def __call__(self) -> T:
        asked = trio.current_time()
        async with self._turn:
            if self._begun < asked:
                begun = trio.current_time()
                self._made = [await self._make()]
                self._begun = begun
            return self._made[0]
