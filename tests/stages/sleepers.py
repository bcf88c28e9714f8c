"""Engines for tests that can be told to sleep, as vLLM's can."""

from __future__ import annotations

import os
import signal

from omni_actors.protocol.errors import invalid_request
from omni_actors.protocol.frames import Query
from omni_actors.worker.engine import Outbox
from omni_actors.worker.engines.stub import StubEngine


class Sleeper(StubEngine):
    """A stub that stands still while it sleeps, and has no memory to give back."""

    commands = frozenset({"sleep", "wake"})
    _asleep = False

    @property
    def runnable(self) -> bool:
        return super().runnable and not self._asleep

    def query(self, query: Query, out: Outbox) -> None:
        if query.what not in self.commands:
            super().query(query, out)
            return
        if query.args.get("level"):
            raise invalid_request("Level 1 needs a GPU.", "level")
        self._asleep = query.what == "sleep"
        out.reply(query.id, None)


class Slow(Sleeper):
    """Falls asleep, and does not say so."""

    def query(self, query: Query, out: Outbox) -> None:
        self._asleep = query.what == "sleep"


class Mortal(Sleeper):
    """Dies of being told to sleep."""

    def query(self, query: Query, out: Outbox) -> None:
        os.kill(os.getpid(), signal.SIGKILL)
