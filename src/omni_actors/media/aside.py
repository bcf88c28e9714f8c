"""A thread for calls that cannot be cut into slices."""

from __future__ import annotations

from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

T = TypeVar("T")

TURN_S = 0.002
"""How long a turn of the waiting job may take: others have theirs in between, and nothing spins."""


class Aside:
    """One thread, for libraries that decode a whole file in one call and release the interpreter meanwhile.

    Calls run one after the other. The owner must :meth:`close` it.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "aside")

    def run(self, call: Callable[[], T], stop: Callable[[], None]) -> Generator[None, None, T]:
        """The call's value, waited for in turns. Raises what it raises.

        Closing the generator early calls ``stop``, which should make the call end soon, and waits for it: nothing of it
        goes on afterwards.
        """
        future = self._pool.submit(call)
        try:
            while not wait((future,), TURN_S).done:
                yield
            return future.result()
        finally:
            if not future.cancel() and not future.done():
                stop()
                wait((future,))

    def close(self) -> None:
        self._pool.shutdown()
