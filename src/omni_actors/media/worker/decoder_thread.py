"""A thread for calls of decoders that cannot be cut into slices."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

T = TypeVar("T")

TURN_S = 0.002
"""Seconds that one turn of a waiting job may take. Other jobs have their turns in between, and nothing spins."""


class DecoderStuck(Exception):
    """Raised when a call does not return and all other calls wait behind it: the process must end."""


class JobAbandoned(BaseException):
    """Thrown into a job whose request is gone. The job ends at once; a job in :meth:`DecoderThread.run` ends with its
    call."""


class DecoderThread:
    """One thread for libraries that decode a whole file in one call and release the interpreter meanwhile.

    Calls run one after the other. The owner must :meth:`close` the thread, and :meth:`check` it now and then.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._pool = ThreadPoolExecutor(1, "decoder-thread")
        self._clock = clock
        self._begun: float | None = None
        """The time at which the running call began; None between calls."""

    def check(self, budget_s: float) -> None:
        """Raise :class:`DecoderStuck` if one call has run for longer than ``budget_s`` seconds."""
        begun = self._begun
        if begun is not None and (took := self._clock() - begun) > budget_s:
            raise DecoderStuck(f"a decoder has not come back for {took:.0f} s")

    def run(self, call: Callable[[], T], stop: Callable[[], None]) -> Generator[None, None, T]:
        """Run ``call`` in the thread, wait for the call in turns, and return its value. Errors of the call are raised.

        Throwing :class:`JobAbandoned` into the generator calls ``stop``, which should make the call end soon. Some
        libraries do not look at such a request before their work is done, so the generator waits for the end of the
        call in turns, too, and raises :class:`JobAbandoned` then: the memory that the call works on stays until the
        call is over. Closing the generator waits for the call at once, without turns.
        """
        future = self._pool.submit(self._timed, call)
        left: JobAbandoned | None = None
        try:
            while not wait((future,), TURN_S).done:
                try:
                    yield
                except JobAbandoned as error:
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
        """Wait for the running call, and end the thread."""
        self._pool.shutdown()
