"""The release of memory for reuse by a worker that has nothing to do."""

from __future__ import annotations

import time

from omni_actors.connectors.shared_memory import Arena
from omni_actors.protocol.frames import Hello
from omni_actors.protocol.limits import REST_AFTER_S
from omni_actors.worker.engine import Engine


class Rest:
    """A timer for the release of memory: after ``limits["rest_after_s"]`` seconds without work the timer closes the
    empty slabs of ``arenas``, and calls the engine's :meth:`~omni_actors.worker.engine.Engine.rest`."""

    def __init__(self, hello: Hello, engine: Engine, *arenas: Arena) -> None:
        self.worked = False
        """Whether there was work in this turn; set by the loop."""
        self._after_s = hello.limits.get("rest_after_s", REST_AFTER_S.default)
        self._engine = engine
        self._arenas = arenas
        self._at: float | None = None

    @property
    def in_s(self) -> float | None:
        """Seconds until :meth:`turn` has something to do; ``None`` if it has nothing to do before there is work."""
        return None if self._at is None else max(0.0, self._at - time.monotonic())

    def turn(self, idle: bool) -> None:
        """End a turn of the loop. ``idle`` means: nobody waits for this worker."""
        if self.worked:
            self.worked = False
            self._at = time.monotonic() + self._after_s
        elif idle and self._at is not None and self._at <= (now := time.monotonic()):
            for arena in self._arenas:
                arena.give_back()
            again_s = self._engine.rest()
            self._at = None if again_s is None else now + again_s
