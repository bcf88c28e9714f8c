"""One answer for all callers that ask at the same time."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import trio

T = TypeVar("T")


class SingleFlight(Generic[T]):
    """Computes a costly value, one computation at a time, for any number of callers.

    Each caller gets a value whose computation began after the call; all callers that wait by then share it. Raises the
    exceptions of ``make``. When the computing task is cancelled, the next caller computes anew.
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
