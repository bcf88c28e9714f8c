"""The interface between a supervisor and its children: actors and other supervisors."""

from __future__ import annotations

from typing import Protocol

import trio

from omni_actors.actors.ref import State
from omni_actors.actors.tree import Branch


class Supervised(Protocol):
    """A child of a supervisor: the running side of an actor, or another supervisor."""

    name: str
    state: State
    ready_at: float | None
    """The trio time at which the latest incarnation became ready."""
    restarts: int
    failures: int
    """Failures in a row."""
    restart_at: float | None
    """The trio time at which the next incarnation begins, while the child waits for it."""
    last_error: Exception | None
    stop_requested: trio.Event

    async def run_incarnation(self) -> Exception | None:
        """Run one incarnation.

        Returns:
            The failure that ended the incarnation, or ``None`` when the child was asked to stop.
        """

    def stop(self) -> None:
        """Ask the child to end in good order. Does not wait."""

    def close(self) -> None:
        """Mark the child as stopped for good; its mailbox refuses messages from now on."""

    async def wait_stopped(self) -> None:
        """Wait until the child is stopped for good."""

    def tree(self) -> Branch:
        """Return a snapshot of the child and of its own children."""
