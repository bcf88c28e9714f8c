"""The exceptions of the actor library, for the callers and for the owners of actors."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from omni_actors.actors.child_process import Death


class ActorError(Exception):
    """The base class of the errors that a ref raises to the caller of an actor."""


class MailboxFull(ActorError):
    """The mailbox holds as many messages as it may, and this message was not taken. Try later, or shed the load.

    >>> from omni_actors.actors.mailbox import Mailbox
    >>> mailbox = Mailbox("printer", capacity=1)
    >>> mailbox.put("page 1")
    >>> mailbox.put("page 2")
    Traceback (most recent call last):
    omni_actors.actors.errors.MailboxFull: the mailbox of 'printer' is full: it holds 1 message
    """

    def __init__(self, name: str, capacity: int) -> None:
        count = "1 message" if capacity == 1 else f"{capacity} messages"
        super().__init__(f"the mailbox of {name!r} is full: it holds {count}")
        self.name = name
        self.capacity = capacity


class ActorStopped(ActorError):
    """The actor is stopped, or was stopped before it answered. A message that the actor had not begun had no effect."""

    def __init__(self, name: str) -> None:
        super().__init__(f"actor {name!r} is stopped")
        self.name = name


class ActorCrashed(ActorError):
    """The actor failed while it held this message; ``__cause__`` is the failure.

    The message is not delivered again. The next message may find the actor restarted.
    """

    def __init__(self, name: str, cause: BaseException) -> None:
        super().__init__(f"actor {name!r} crashed: {type(cause).__name__}: {cause}")
        self.name = name
        self.__cause__ = cause


class AskCycle(ActorError):
    """This ask could only end by its deadline, because the actor that would answer waits for the asking actor.

    The wait may lead through other actors. Asks go downward in the tree of supervisors; upward goes ``tell``.

    >>> import trio
    >>> from omni_actors.actors import Actor, AskCycle, open_supervisor
    >>> class Narcissus(Actor[str]):
    ...     async def receive(self, message: str) -> str:
    ...         try:
    ...             return await self.ref.ask("who is the fairest?", within=60)
    ...         except AskCycle as cycle:
    ...             return str(cycle)
    >>> async def main() -> None:
    ...     async with open_supervisor() as root:
    ...         print(await root.start(Narcissus, name="narcissus").ask("look", within=60))
    >>> trio.run(main)
    actors ask each other in a circle: narcissus → narcissus
    """

    def __init__(self, names: list[str]) -> None:
        super().__init__(f"actors ask each other in a circle: {' → '.join(names)}")
        self.names = names


class Refusal(ActorError):
    """An answer that is an error. :meth:`Actor.receive <omni_actors.actors.actor.Actor.receive>` raises a refusal.

    A refusal is no crash: the actor goes on, and the asker gets the same exception object. ``value`` says why, for a
    program to read. A refusal also crosses process boundaries, so ``value`` is made of what messages are made of.

    >>> import trio
    >>> from omni_actors.actors import Actor, Refusal, open_supervisor
    >>> class Account(Actor[int]):
    ...     balance = 10
    ...     async def receive(self, amount: int) -> int:
    ...         if amount > self.balance:
    ...             raise Refusal({"missing": amount - self.balance})
    ...         self.balance -= amount
    ...         return self.balance
    >>> async def main() -> None:
    ...     async with open_supervisor() as root:
    ...         account = root.start(Account, name="account")
    ...         try:
    ...             await account.ask(25, within=1)
    ...         except Refusal as refusal:
    ...             print(refusal.value)
    ...         print(await account.ask(4, within=1))
    >>> trio.run(main)
    {'missing': 15}
    6
    """

    def __init__(self, value: object) -> None:
        super().__init__(str(value))
        self.value = value


class Escalation(Exception):
    """A supervisor gave up because a child failed too often in a row; ``__cause__`` is the last failure."""

    def __init__(self, name: str, failures: int, cause: BaseException) -> None:
        times = "once" if failures == 1 else f"{failures} times in a row"
        super().__init__(f"{name!r} failed {times}; last: {type(cause).__name__}: {cause}")
        self.name = name
        self.failures = failures
        self.__cause__ = cause


class Renewed(Exception):
    """Raised by an actor to end its incarnation on purpose, so that the next incarnation begins at once.

    The supervisor counts no failure and makes no pause.

    >>> import trio
    >>> from omni_actors.actors import Actor, Renewed, open_supervisor
    >>> class Connection(Actor[str]):
    ...     async def setup(self) -> None:
    ...         print("connected")
    ...     async def receive(self, message: str) -> None:
    ...         if message == "server moved":
    ...             raise Renewed(message)
    ...         print("sent", message)
    >>> async def main() -> None:
    ...     async with open_supervisor() as root:
    ...         connection = root.start(Connection, name="connection")
    ...         connection.tell("server moved")
    ...         await connection.ask("hello", within=5)
    >>> trio.run(main)
    connected
    connected
    sent hello
    """


class ProcessDied(Exception):
    """An actor's process ended by itself; ``death`` says how."""

    def __init__(self, death: Death) -> None:
        super().__init__(str(death))
        self.death = death


class RemoteFailure(Exception):
    """An actor failed in its own process.

    ``kind`` is the class name of the exception there. The traceback from there is a note on this exception, so that the
    log shows it.
    """

    def __init__(self, kind: str, text: str, remote_traceback: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind
        self.remote_traceback = remote_traceback
        self.add_note(f"In the actor's process:\n{remote_traceback}")


class ProtocolError(Exception):
    """The other end of a channel sent bytes that this version does not understand, or a frame that is too large."""
