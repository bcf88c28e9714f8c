"""A thread for calls that cannot be cut into slices."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

T = TypeVar("T")

TURN_S = 0.002
"""How long a turn of the waiting job may take: others have theirs in between, and nothing spins."""


class Hung(Exception):
    """A call does not come back, and all others wait behind it: the process must end."""


class Left(BaseException):
    """Thrown into a job that nobody waits for any more: it ends there, unless that is in :meth:`Aside.run`."""


class Aside:
    """One thread, for libraries that decode a whole file in one call and release the interpreter meanwhile.

    Calls run one after the other. The owner must :meth:`close` it, and :meth:`check` it now and then.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._pool = ThreadPoolExecutor(1, "aside")
        self._clock = clock
        self._begun: float | None = None
        """When the call that the thread is in began."""

    def check(self, budget_s: float) -> None:
        """Raises :class:`Hung` if the thread has been in one call for longer than that."""
        begun = self._begun
        if begun is not None and (took := self._clock() - begun) > budget_s:
            raise Hung(f"a decoder has not come back for {took:.0f} s")

    def run(self, call: Callable[[], T], stop: Callable[[], None]) -> Generator[None, None, T]:
        """The call's value, waited for in turns. Raises what it raises.

        Throwing :class:`Left` into the generator calls ``stop``, which should make the call end soon. Some libraries do
        not look up before they are done, so its end is waited for in turns too, and then :class:`Left` is raised: what
        the call works on is not taken away from under it. Closing the generator waits at once.
        """
        future = self._pool.submit(self._timed, call)
        left: Left | None = None
        try:
            while not wait((future,), TURN_S).done:
                try:
                    yield
                except Left as error:
                    left = error
                    if future.cancel():
                        break
                    stop()
            if left is not None:
                raise left
            return future.result()
        finally:
            if not future.cancel() and not future.done():
                stop()
                wait((future,))

    def _timed(self, call: Callable[[], T]) -> T:
        self._begun = self._clock()
        try:
            return call()
        finally:
            self._begun = None

    def close(self) -> None:
        """Wait for the call that the thread is in."""
        self._pool.shutdown()
