"""The base class of actors: state that one task owns and changes by one message at a time."""

from __future__ import annotations

import inspect
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
    """An actor: subclass it, write :meth:`receive`, and start the subclass under a supervisor.

    One *incarnation* of an actor is: :meth:`setup`; then :meth:`receive` for one message after the other, with
    :meth:`on_signal` for signals before the messages that wait; then :meth:`teardown`. An :class:`Exception` ends the
    incarnation as a crash (cancellation is no crash), and the supervisor decides about the next incarnation: a new
    object from the same factory, behind the same mailbox.

    >>> import trio
    >>> from omni_actors.actors import Actor, ActorCrashed, open_supervisor
    >>> class Counter(Actor[int]):
    ...     async def setup(self) -> None:
    ...         self.total = 0
    ...     async def receive(self, message: int) -> int:
    ...         self.total += 100 // message
    ...         return self.total
    >>> async def main() -> None:
    ...     async with open_supervisor() as root:
    ...         counter = root.start(Counter, name="counter")
    ...         counter.tell(50)
    ...         print(await counter.ask(20, within=1))
    ...         try:
    ...             await counter.ask(0, within=1)
    ...         except ActorCrashed as crash:
    ...             print(crash)
    ...         print(await counter.ask(1, within=1))  # the next incarnation counts from 0
    >>> trio.run(main)
    7
    actor 'counter' crashed: ZeroDivisionError: integer division or modulo by zero
    100
    """

    message_type: ClassVar[Any] = Any
    """The type to which messages are decoded when the actor runs in another process (any type that msgspec knows)."""

    _cell: _Cell

    async def setup(self) -> None:
        """Make the state of an incarnation. An exception here counts as a crash, however long the setup took."""

    @abstractmethod
    async def receive(self, message: M) -> Any:
        """Handle one message. No other message of this actor is handled meanwhile.

        Cancellation: if the asker goes away, ``receive`` is *cancelled* where it waits, and the incarnation goes on
        with the next message. Shield work that must not be left half done.

        Args:
            message: The message, as it was told or asked.

        Returns:
            The answer of an ask. The answer to a told message is dropped.

        Raises:
            Refusal: The answer of an ask, raised in the asker. Every other exception is a crash of the actor.
        """

    async def on_signal(self, key: Hashable, value: Any) -> None:
        """Handle the latest value of one signal (:meth:`ActorRef.signal <omni_actors.actors.ref.ActorRef.signal>`).

        >>> import trio
        >>> from omni_actors.actors import Actor, open_supervisor
        >>> class Player(Actor[str]):
        ...     volume = 5
        ...     async def receive(self, song: str) -> str:
        ...         return f"{song} at {self.volume}"
        ...     async def on_signal(self, key, value) -> None:
        ...         self.volume = value
        >>> async def main() -> None:
        ...     async with open_supervisor() as root:
        ...         player = root.start(Player, name="player")
        ...         player.signal("volume", 7)
        ...         player.signal("volume", 9)  # replaces 7, which is never handled
        ...         print(await player.ask("Blue", within=1))
        >>> trio.run(main)
        Blue at 9

        Args:
            key: The name of the signal.
            value: The latest value; older values that were not yet handled are gone.
        """

    async def teardown(self) -> None:
        """Free the state that :meth:`setup` made.

        Runs once for each setup that returned, however the incarnation ended, after the tasks of :meth:`start_soon`
        have ended. The teardown is shielded from cancellation and has :data:`~omni_actors.actors.cell.TEARDOWN_S`
        seconds. An exception here is logged and changes nothing else.
        """

    @property
    def ref(self) -> ActorRef[M]:
        """The actor's own ref, which it may give to other actors."""
        return self._cell.ref

    def start_soon(self, function: Callable[[*Ts], Awaitable[object]], *args: *Ts) -> None:
        """Run a task beside :meth:`receive`. The end of the incarnation cancels the task.

        An exception of the task is a crash of the actor.

        >>> import trio
        >>> from omni_actors.actors import Actor, open_supervisor
        >>> class Clock(Actor[str]):
        ...     async def setup(self) -> None:
        ...         self.ticks = 0
        ...         self.start_soon(self.tick, 0.01)
        ...     async def tick(self, seconds: float) -> None:
        ...         while True:
        ...             await trio.sleep(seconds)
        ...             self.ticks += 1
        ...     async def receive(self, message: str) -> bool:
        ...         return self.ticks > 0
        >>> async def main() -> None:
        ...     async with open_supervisor() as root:
        ...         clock = root.start(Clock, name="clock")
        ...         await trio.sleep(0.5)
        ...         print(await clock.ask("has it ticked?", within=1))
        >>> trio.run(main)
        True

        Args:
            function: The asynchronous function to run.
            args: The arguments of ``function``.

        Raises:
            RuntimeError: No incarnation runs that could own the task.
        """
        self._cell.start_soon(function, *args)

    def defer(self) -> Reply | None:
        """Take over the answering of the current ask, so that :meth:`receive` may return before there is an answer.

        A deferred ask does not end with ``receive``, and its withdrawal does not cancel ``receive`` but calls the
        callback of :meth:`Reply.on_withdrawn`. A deferred ask without an answer fails when the incarnation ends.

        >>> import trio
        >>> from omni_actors.actors import Actor, open_supervisor
        >>> class Barrier(Actor[str]):
        ...     async def setup(self) -> None:
        ...         self.arrived = []
        ...     async def receive(self, name: str) -> None:
        ...         self.arrived.append((name, self.defer()))
        ...         if len(self.arrived) == 2:
        ...             for _, reply in self.arrived:
        ...                 reply.answer(sorted(name for name, _ in self.arrived))
        >>> async def main() -> None:
        ...     async with open_supervisor() as root, trio.open_nursery() as nursery:
        ...         barrier = root.start(Barrier, name="barrier")
        ...         async def arrive(name: str) -> None:
        ...             print(await barrier.ask(name, within=1))
        ...         nursery.start_soon(arrive, "a")
        ...         nursery.start_soon(arrive, "b")
        >>> trio.run(main)
        ['a', 'b']
        ['a', 'b']

        Returns:
            The reply to settle later, or ``None`` when the current message was told and not asked.
        """
        return self._cell.defer()


def check_factory(factory: object) -> None:
    """Raise ``TypeError`` for a factory that cannot make a new actor for each incarnation."""
    if isinstance(factory, Actor):
        kind = type(factory).__name__
        raise TypeError(
            f"start() takes a function that makes a new actor for each incarnation, not the actor {factory!r}: "
            f"pass the class, or lambda: {kind}(...)"
        )
    if not callable(factory):
        raise TypeError(f"start() takes a function that makes a new actor for each incarnation, not {factory!r}")
    if isinstance(factory, type) and not issubclass(factory, Actor):
        raise TypeError(f"start() takes a function that makes an actor, and {factory.__qualname__} is not an Actor")
    if inspect.isabstract(factory):
        name = getattr(factory, "__qualname__", factory)
        raise TypeError(f"{name} has no receive(): an actor must define how it handles a message")
