"""The base class of actors: state that one task owns and changes by one message at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, ClassVar, Generic, Protocol, TypeVar, TypeVarTuple

from omni_actors.actors.ref import ActorRef
from omni_actors.actors.reply import Reply

__all__ = ["Actor", "Reply"]

M = TypeVar("M")
Ts = TypeVarTuple("Ts")


class _Cell(Protocol):
    """The running side of an actor, with the parts that the actor itself uses."""

    ref: ActorRef[Any]

    def start_soon(self, function: Callable[[*Ts], Awaitable[object]], *args: *Ts) -> None: ...

    def defer(self) -> Reply | None: ...


class Actor(ABC, Generic[M]):
    """Subclass it, write :meth:`receive` and what else is needed, and start it under a supervisor.

    One *life* is: :meth:`setup`; then :meth:`receive` for one message after the other (and :meth:`on_signal` before
    them); :meth:`teardown`. An exception (an :class:`Exception`: cancellation is none) ends the life as a crash, and
    the supervisor decides about the next one: a new object from the same factory, behind the same mailbox.
    """

    message_type: ClassVar[Any] = Any
    """What messages are decoded to when they come from another process (any type that msgspec knows)."""

    _cell: _Cell

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
