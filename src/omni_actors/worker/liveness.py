"""The worker's side of its liveness page (:mod:`omni_actors.protocol.liveness`)."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from omni_actors.protocol.liveness import PAGE_BYTES, VARIABLE, WORDS, Activity

WAITING, WORKING, COMPILING = int(Activity.WAITING), int(Activity.WORKING), int(Activity.COMPILING)
"""The activities as plain numbers: the loop writes them several times in each turn."""


class Liveness:
    """The worker's report of its own activity. A report costs a store to memory: no call, no lock, no wake-up."""

    def __init__(self, fd: int | None = None, clock: Callable[[], int] = time.monotonic_ns) -> None:
        """Map the page behind ``fd``, which is closed here. Without ``fd`` nobody reads the page (a worker under
        test)."""
        self._map = mmap.mmap(-1 if fd is None else fd, PAGE_BYTES)
        if fd is not None:
            os.close(fd)
        self._words = memoryview(self._map).cast("Q")[:WORDS]
        self._clock = clock
        self._turns = 0

    @classmethod
    def inherited(cls) -> Liveness:
        """Return the page that the launcher of this process passed, or one without readers."""
        fd = os.environ.pop(VARIABLE, None)
        return cls(None if fd is None else int(fd))

    def turn(self) -> None:
        """Report the begin of a turn of the loop."""
        self._turns += 1
        words = self._words
        words[0] = self._turns
        words[1] = WORKING
        words[2] = self._clock()

    def enter(self, activity: int) -> None:
        """Report an :class:`Activity`, from now on."""
        words = self._words
        words[1] = activity
        words[2] = self._clock()

    @contextmanager
    def compiling(self) -> Iterator[None]:
        """Report a compilation for the time of the context, and then the activity before."""
        before = self._words[1]
        self.enter(COMPILING)
        try:
            yield
        finally:
            self.enter(before)

    def close(self) -> None:
        self._words.release()
        self._map.close()
