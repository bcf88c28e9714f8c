"""The worker's side of its liveness page (:mod:`omni_actors.protocol.liveness`)."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable

from omni_actors.protocol.liveness import PAGE_BYTES, VARIABLE, WORDS, Activity

WAITING, WORKING, COMPILING = int(Activity.WAITING), int(Activity.WORKING), int(Activity.COMPILING)
"""As plain numbers: they are written several times in each turn."""


class Liveness:
    """What this worker says of itself. A word costs a store to memory: no call, no lock, nobody is woken."""

    def __init__(self, fd: int | None = None, clock: Callable[[], int] = time.monotonic_ns) -> None:
        """``fd`` is the page's, and closed here; without one it is said to nobody (a worker under test)."""
        self._map = mmap.mmap(-1 if fd is None else fd, PAGE_BYTES)
        if fd is not None:
            os.close(fd)
        self._words = memoryview(self._map).cast("Q")[:WORDS]
        self._clock = clock
        self._turns = 0

    @classmethod
    def inherited(cls) -> Liveness:
        """The page that the launcher of this process gave it, if it gave one."""
        fd = os.environ.pop(VARIABLE, None)
        return cls(None if fd is None else int(fd))

    def turn(self) -> None:
        """A turn of the loop begins."""
        self._turns += 1
        words = self._words
        words[0] = self._turns
        words[1] = WORKING
        words[2] = self._clock()

    def enter(self, activity: int) -> None:
        """An :class:`Activity`, from now on."""
        words = self._words
        words[1] = activity
        words[2] = self._clock()

    def close(self) -> None:
        self._words.release()
        self._map.close()
