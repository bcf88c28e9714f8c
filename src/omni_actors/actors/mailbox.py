"""A bounded queue of messages for one receiver, with control state beside it that is never refused."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Any

import trio

from omni_actors.actors.errors import ActorStopped, MailboxFull


class Mailbox:
    """Messages in the order of their arrival, at most ``capacity`` of them, and outside that bound:

    - *signals*, one value per key: a newer value replaces the older one, so a signal is never lost and never refused,
      and there are never more of them than keys. Values should be cumulative ("acknowledged up to 17", not "2 more").
    - the *stop* flag.

    Every method but :meth:`wait` is synchronous and cheap; none of them is a checkpoint. One task receives. To be used
    in the thread of one trio run.
    """

    __slots__ = ("_bound", "_parked", "capacity", "name", "queue", "signals", "stopping")

    def __init__(self, name: str, capacity: int) -> None:
        if capacity < 1:
            raise ValueError("a mailbox holds at least one message")
        self.name = name
        self.capacity = capacity
        self.queue: deque[Any] = deque()
        self.signals: dict[Hashable, object] = {}
        self.stopping = False
        self._bound = capacity
        self._parked: trio.lowlevel.Task | None = None

    def put(self, message: object) -> None:
        """Append a message. Raises :class:`MailboxFull` or, once closed, :class:`ActorStopped`: it was not taken."""
        if len(self.queue) >= self._bound:
            raise self._refusal()
        self.queue.append(message)
        if self._parked is not None:
            self._wake()

    def discard(self, message: object) -> bool:
        """Take back this very message (identity, not equality). Returns whether it was there still."""
        for place, waiting in enumerate(self.queue):
            if waiting is message:
                del self.queue[place]
                return True
        return False

    def signal(self, key: Hashable, value: object) -> None:
        """Set the value of a signal. Signals that wait keep the order in which their keys were first set."""
        if self._bound:
            self.signals[key] = value
            if self._parked is not None:
                self._wake()

    def stop(self) -> None:
        """Ask the receiver to end. Never undone."""
        self.stopping = True
        if self._parked is not None:
            self._wake()

    async def wait(self) -> None:
        """Wait until there is a message, a signal or the wish to stop. A checkpoint always; cancellation changes
        nothing."""
        if self.queue or self.signals or self.stopping:
            await trio.lowlevel.checkpoint()
            return
        if self._parked is not None:
            raise trio.BusyResourceError("another task already receives from this mailbox")
        self._parked = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(self._abort)

    def close(self) -> list[Any]:
        """Refuse what comes from now on. Returns the messages that nobody received; signals are dropped."""
        self._bound = 0
        left = list(self.queue)
        self.queue.clear()
        self.signals.clear()
        return left

    @property
    def closed(self) -> bool:
        return self._bound == 0

    def _refusal(self) -> Exception:
        return MailboxFull(self.name, self.capacity) if self._bound else ActorStopped(self.name)

    def _wake(self) -> None:
        task, self._parked = self._parked, None
        assert task is not None
        trio.lowlevel.reschedule(task)

    def _abort(self, raise_cancel: object) -> trio.lowlevel.Abort:
        self._parked = None
        return trio.lowlevel.Abort.SUCCEEDED
