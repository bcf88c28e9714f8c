"""Threads for libraries that write a whole file in one call."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

STUCK_S = 300.0
"""Seconds after which a call that has not come back counts as stuck: many times what the largest file takes."""

SMALL_PIXELS = 1 << 20
"""The most pixels of a small picture."""

Write = Callable[[Callable[[], bool]], list[bytes]]
"""A function that writes a file and returns its parts. It gets a function that says whether to stop."""


class EncoderStuck(Exception):
    """Raised when a call does not return and other calls wait behind it: the process must end."""


class Call:
    """A call in a thread: its ``future``, and whether it should stop."""

    def __init__(self, write: Write, pool: ThreadPoolExecutor, clock: Callable[[], float]) -> None:
        self._write = write
        self._clock = clock
        self._stopped = False
        self.begun: float | None = None
        """The time at which the call began; ``None`` while the call waits, and after its end."""
        self.future: Future[list[bytes]] = pool.submit(self._run)

    def stop(self) -> None:
        """Ask the call to end soon. Never waits."""
        self._stopped = True
        self.future.cancel()

    def _run(self) -> list[bytes]:
        self.begun = self._clock()
        try:
            return self._write(lambda: self._stopped)
        finally:
            self.begun = None


class EncoderThreads:
    """Two threads: one for small pictures, and one for large pictures, so that a small picture never waits for a large
    one. Calls of one thread run in order. The owner must :meth:`close` the threads, and :meth:`check` them now and
    then."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._small = ThreadPoolExecutor(1, "small-pictures")
        self._large = ThreadPoolExecutor(1, "large-pictures")
        self._clock = clock

    def submit(self, pixels: int, write: Write) -> Call:
        """Run ``write`` for a picture with so many ``pixels``."""
        return Call(write, self._small if pixels <= SMALL_PIXELS else self._large, self._clock)

    def check(self, calls: Iterable[Call]) -> None:
        """Raise :class:`EncoderStuck` if one of the calls has run for longer than :data:`STUCK_S` seconds."""
        now = self._clock()
        for call in calls:
            begun = call.begun
            if begun is not None and now - begun > STUCK_S:
                raise EncoderStuck(f"an encoder has not come back for {now - begun:.0f} s")

    @staticmethod
    def wait(calls: Iterable[Call], seconds: float) -> None:
        """Wait until one of the calls is over, at most so many seconds."""
        wait([call.future for call in calls], seconds, FIRST_COMPLETED)

    def close(self) -> None:
        """End the threads, the running calls last. Calls that wait are cancelled."""
        for pool in (self._small, self._large):
            pool.shutdown(wait=False, cancel_futures=True)
