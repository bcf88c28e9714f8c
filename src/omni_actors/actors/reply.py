"""The pending answer of an ask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import trio

from omni_actors.actors.mailbox import Mailbox


class Handler(Protocol):
    """The actor that was asked, with the state that its replies change."""

    mailbox: Mailbox
    current: Reply | None
    """The ask that is being handled."""
    deferred: set[Reply]
    """The asks whose answers were taken over by :meth:`Actor.defer <omni_actors.actors.actor.Actor.defer>`."""

    def interrupt(self) -> None:
        """Cancel the handling of the current message."""


class Reply:
    """The other end of an ask. It is settled once: answered, failed, or withdrawn by the asker; what comes later is
    dropped."""

    __slots__ = ("_on_settled", "_on_withdrawn", "_task", "cell", "deferred", "error", "message", "settled", "value")

    def __init__(self, message: object, on_settled: Callable[[Reply], object] | None = None) -> None:
        """``on_settled`` is called, synchronously, when there is an answer or a failure; without it a task waits for
        them (:meth:`wait`)."""
        self.message = message
        self.settled = False
        """Whether nobody waits any longer."""
        self.value: Any = None
        self.error: BaseException | None = None
        self.deferred = False
        self.cell: Handler | None = None
        """The actor that it was sent to."""
        self._task: trio.lowlevel.Task | None = None
        self._on_settled = on_settled
        self._on_withdrawn: Callable[[], object] | None = None

    def answer(self, value: object) -> None:
        """End the ask with a value."""
        if not self.settled:
            self.value = value
            self._settle()

    def fail(self, error: BaseException) -> None:
        """End the ask with an exception, raised in the asker."""
        if not self.settled:
            self.error = error
            self._settle()

    def withdraw(self) -> bool:
        """The asker goes away. A message that waits in the mailbox leaves it (returns ``True``); if it is being
        handled, and not deferred, the handling is cancelled."""
        if self.settled:
            return False
        self._task = self._on_settled = None
        self._settle()
        if self._on_withdrawn is not None:
            self._on_withdrawn()
        if self.cell is None:
            return False
        if self.cell.current is self:
            if not self.deferred:
                self.cell.interrupt()
            return False
        return self.cell.mailbox.discard(self)

    def on_withdrawn(self, callback: Callable[[], object]) -> None:
        """Call this, synchronously, when the asker goes away without an answer (cancelled, or its deadline passed)."""
        self._on_withdrawn = callback

    async def wait(self) -> Any:
        """For the asker, once. Cancellation withdraws the question."""
        if not self.settled:
            self._task = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._abort)
        if self.error is not None:
            try:
                raise self.error
            finally:
                self.error = None  # no cycle of traceback, frame and reply
        return self.value

    def _settle(self) -> None:
        self.settled = True
        if self.deferred and self.cell is not None:
            self.cell.deferred.discard(self)
        if self._task is not None:
            task, self._task = self._task, None
            trio.lowlevel.reschedule(task)
        elif self._on_settled is not None:
            self._on_settled(self)

    def _abort(self, raise_cancel: object) -> trio.lowlevel.Abort:
        self.withdraw()
        return trio.lowlevel.Abort.SUCCEEDED
