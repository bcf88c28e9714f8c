"""A thread for calls that cannot be cut into slices."""

from __future__ import annotations

from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

T = TypeVar("T")

TURN_S = 0.002
"""How long a turn of the waiting job may take: others have theirs in between, and nothing spins."""


class Left(BaseException):
    """Thrown into a job that nobody waits for any more: it ends there, unless that is in :meth:`Aside.run`."""


class Aside:
    """One thread, for libraries that decode a whole file in one call and release the interpreter meanwhile.

    Calls run one after the other. The owner must :meth:`close` it.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "aside")

    def run(self, call: Callable[[], T], stop: Callable[[], None]) -> Generator[None, None, T]:
        """The call's value, waited for in turns. Raises what it raises.

        Throwing :class:`Left` into the generator calls ``stop``, which should make the call end soon. Some libraries do
        not look up before they are done, so its end is waited for in turns too, and then :class:`Left` is raised: what
        the call works on is not taken away from under it. Closing the generator waits at once.
        """
        future = self._pool.submit(call)
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

    def close(self) -> None:
        self._pool.shutdown()
