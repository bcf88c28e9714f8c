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
    """The answer that an asker waits for. An actor gets a reply from :meth:`Actor.defer()
    <omni_actors.actors.actor.Actor.defer>`.

    A reply is settled once: answered, failed, or withdrawn by the asker. Later calls do nothing.
    """

    __slots__ = ("_on_settled", "_on_withdrawn", "_task", "cell", "deferred", "error", "message", "settled", "value")

    def __init__(self, message: object, on_settled: Callable[[Reply], object] | None = None) -> None:
        """Make the reply of one ask.

        Args:
            message: The message that the actor receives.
            on_settled: Called, synchronously, when there is an answer or a failure. Without it a task waits by
                :meth:`wait`.
        """
        self.message = message
        self.settled = False
        """Whether the ask is over, so that nobody waits any longer."""
        self.value: Any = None
        self.error: BaseException | None = None
        self.deferred = False
        self.cell: Handler | None = None
        """The actor that was asked."""
        self._task: trio.lowlevel.Task | None = None
        self._on_settled = on_settled
        self._on_withdrawn: Callable[[], object] | None = None

    def answer(self, value: object) -> None:
        """End the ask with a value.

        Args:
            value: The value that :meth:`ActorRef.ask <omni_actors.actors.ref.ActorRef.ask>` returns.
        """
        if not self.settled:
            self.value = value
            self._settle()

    def fail(self, error: BaseException) -> None:
        """End the ask with an exception.

        Args:
            error: The exception that is raised in the asker.
        """
        if not self.settled:
            self.error = error
            self._settle()

    def withdraw(self) -> bool:
        """End the ask because the asker goes away.

        A message that still waits leaves the mailbox. If the message is being handled, and its answer is not deferred,
        the handling is cancelled.

        Returns:
            Whether the message left the mailbox, so that the actor never sees it.
        """
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
        """Register a callback for an asker that goes away without an answer: cancelled, or past its deadline.

        Args:
            callback: Called synchronously, in the asker's task. It must neither wait nor raise.
        """
        self._on_withdrawn = callback

    async def wait(self) -> Any:
        """Wait for the answer. The asker calls this once.

        Cancellation withdraws the ask. A checkpoint only if there is no answer yet.

        Returns:
            The value of :meth:`answer`.

        Raises:
            BaseException: The exception that :meth:`fail` was given.
        """
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
