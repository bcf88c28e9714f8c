"""What an actor is: state that one task owns, changed by one message at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Hashable
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, TypeVarTuple

import trio

if TYPE_CHECKING:
    from omni_actors.actors.cell import Cell
    from omni_actors.actors.ref import ActorRef

M = TypeVar("M")
Ts = TypeVarTuple("Ts")


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
        self.cell: Cell | None = None
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


class Actor(ABC, Generic[M]):
    """Subclass it, write :meth:`receive` and what else is needed, and start it under a supervisor.

    One *life* is: :meth:`setup`; then :meth:`receive` for one message after the other (and :meth:`on_signal` before
    them); :meth:`teardown`. An exception (an :class:`Exception`: cancellation is none) ends the life as a crash, and
    the supervisor decides about the next one: a new object from the same factory, behind the same mailbox.
    """

    message_type: ClassVar[Any] = Any
    """What messages are decoded to when they come from another process (any type that msgspec knows)."""

    _cell: Cell

    async def setup(self) -> None:
        """Make what the life needs. A failure here counts as a crash, however long it took."""

    @abstractmethod
    async def receive(self, message: M) -> Any:
        """Handle one message. What it returns answers an ask, and is dropped for a tell.

        While it runs nothing else of this actor's messages does. If the asker goes away, it is *cancelled* where it
        waits, and the life goes on with the next message; shield what must not be left half done. A
        :class:`~omni_actors.actors.errors.Refusal` answers an ask with an error; every other exception is a crash.
        """

    async def on_signal(self, key: Hashable, value: Any) -> None:
        """Handle a signal: see :meth:`ActorRef.signal <omni_actors.actors.ref.ActorRef.signal>`."""

    async def teardown(self) -> None:
        """Free what :meth:`setup` made. Runs once for each setup that returned, however the life ended, when the tasks
        of :meth:`start_soon` have ended. It is shielded from cancellation and has
        :data:`~omni_actors.actors.cell.TEARDOWN_S` seconds. An exception is logged and changes nothing else."""

    @property
    def ref(self) -> ActorRef[M]:
        """This actor's own address."""
        return self._cell.ref

    def start_soon(self, function: Callable[[*Ts], Awaitable[object]], *args: *Ts) -> None:
        """Run a task beside :meth:`receive` until the life ends, which cancels it. An exception in it is a crash of the
        actor."""
        self._cell.start_soon(function, *args)

    def defer(self) -> Reply | None:
        """Within :meth:`receive`: take over the answering of this ask. It then does not end with ``receive``, and its
        withdrawal does not cancel ``receive`` but is told by :meth:`Reply.on_withdrawn`. ``None`` when the message was
        told, not asked. What has no answer when the life ends fails."""
        return self._cell.defer()
