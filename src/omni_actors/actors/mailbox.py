"""The mailbox of an actor: a bounded queue of messages, with control state beside it that is never refused."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Any

import trio

from omni_actors.actors.errors import ActorStopped, MailboxFull


class Mailbox:
    """A queue of at most ``capacity`` messages in the order of their arrival, for one receiver.

    Two kinds of control state stand outside that bound:

    - *Signals* have one value per key. A newer value replaces the older one, so a signal is never refused, and a
      mailbox never holds more signals than there are keys. Values should be cumulative ("acknowledged up to 17", not
      "2 more").
    - The *stop* flag.

    Every method but :meth:`wait` is synchronous and cheap, and none of them is a checkpoint. One task receives. A
    mailbox belongs to the thread of one trio run.

    >>> from omni_actors.actors.mailbox import Mailbox
    >>> mailbox = Mailbox("one", capacity=2)
    >>> mailbox.put("first")
    >>> mailbox.signal("acknowledged", 16)
    >>> mailbox.signal("acknowledged", 17)
    >>> mailbox.signals
    {'acknowledged': 17}
    >>> mailbox.discard("second")
    False
    >>> mailbox.close()
    ['first']
    >>> mailbox.put("third")
    Traceback (most recent call last):
    omni_actors.actors.errors.ActorStopped: actor 'one' is stopped
    """

    __slots__ = ("_bound", "_parked", "capacity", "name", "queue", "signals", "stopping")

    def __init__(self, name: str, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"the mailbox of {name!r} must hold at least one message, not {capacity}")
        self.name = name
        self.capacity = capacity
        self.queue: deque[Any] = deque()
        self.signals: dict[Hashable, object] = {}
        self.stopping = False
        self._bound = capacity
        self._parked: trio.lowlevel.Task | None = None

    def put(self, message: object) -> None:
        """Append a message.

        Raises:
            MailboxFull: The queue holds ``capacity`` messages; this message was not taken.
            ActorStopped: The mailbox is closed; this message was not taken.
        """
        if len(self.queue) >= self._bound:
            raise self._refusal()
        self.queue.append(message)
        if self._parked is not None:
            self._wake()

    def discard(self, message: object) -> bool:
        """Take back this very message, found by identity and not by equality.

        Returns:
            Whether the message was still in the queue.
        """
        for place, waiting in enumerate(self.queue):
            if waiting is message:
                del self.queue[place]
                return True
        return False

    def signal(self, key: Hashable, value: object) -> None:
        """Set the value of a signal. Waiting signals keep the order in which their keys were first set."""
        if self._bound:
            self.signals[key] = value
            if self._parked is not None:
                self._wake()

    def stop(self) -> None:
        """Ask the receiver to end. The request is never undone."""
        self.stopping = True
        if self._parked is not None:
            self._wake()

    async def wait(self) -> None:
        """Wait until there is a message, a signal or the stop flag.

        Always a checkpoint. Cancellation changes nothing.

        Raises:
            trio.BusyResourceError: Another task already waits.
        """
        if self.queue or self.signals or self.stopping:
            await trio.lowlevel.checkpoint()
            return
        if self._parked is not None:
            raise trio.BusyResourceError("another task already receives from this mailbox")
        self._parked = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(self._abort)

    def close(self) -> list[Any]:
        """Refuse all messages from now on, and drop the signals.

        Returns:
            The messages that nobody received.
        """
        self._bound = 0
        left = list(self.queue)
        self.queue.clear()
        self.signals.clear()
        return left

    @property
    def closed(self) -> bool:
        """Whether the mailbox refuses all messages."""
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
