"""The ref of an actor: the address by which others send messages to the actor and watch it."""

from __future__ import annotations

import contextvars
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeVar

import trio

from omni_actors.actors.errors import ActorStopped, AskCycle
from omni_actors.actors.reply import Handler, Reply
from omni_actors.actors.thread import check_thread, get_ident

M = TypeVar("M")

State = Literal["starting", "running", "stopping", "waiting", "stopped"]
"""The state of an actor or supervisor. ``waiting`` is the backoff between two incarnations; ``stopped`` is final."""


class Target(Handler, Protocol):
    """The actor behind a ref, with the state that refs read and change."""

    name: str
    state: State
    ready: trio.Event
    failures: int
    restart_at: float | None
    last_error: Exception | None
    watchers: set[ActorRef[Any]]
    task: trio.lowlevel.Task | None
    asking: Target | None
    """The actor whose answer this actor's own task waits for."""

    def stop(self) -> None:
        """Ask the actor to end in good order."""

    async def wait_stopped(self) -> None:
        """Wait for the end of the last incarnation."""


current_cell: contextvars.ContextVar[Target | None] = contextvars.ContextVar("current_cell", default=None)
"""The actor in whose task, or in a child of whose task, the code runs."""


class ActorRef(Generic[M]):
    """The address of one actor, valid over all incarnations of the actor.

    A ref belongs to the thread of its trio run. In another thread ``tell``, ``ask``, ``signal`` and ``stop`` raise
    ``RuntimeError``: from there call them through :func:`trio.from_thread.run_sync` and :func:`trio.from_thread.run`.
    """

    __slots__ = ("__weakref__", "_cell", "_put", "_thread", "name")

    def __init__(self, cell: Target) -> None:
        self.name = cell.name
        self._cell = cell
        self._put = cell.mailbox.put
        self._thread = get_ident()

    def __repr__(self) -> str:
        return f"<ActorRef {self.name} {self._cell.state}>"

    def tell(self, message: M) -> None:
        """Put a message into the mailbox, without an answer. No checkpoint.

        Messages from one sender arrive in order, and a mailbox outlives crashes. A message that was taken is handled
        once, or never if the actor is stopped first. A message that the actor was handling when it crashed or was
        stopped is not handled again.

        >>> import trio
        >>> from omni_actors.actors import Actor, MailboxFull, open_supervisor
        >>> class Printer(Actor[str]):
        ...     async def receive(self, message: str) -> None:
        ...         print(message)
        >>> async def main() -> None:
        ...     async with open_supervisor() as root:
        ...         printer = root.start(Printer, name="printer", capacity=2)
        ...         printer.tell("one")
        ...         printer.tell("two")
        ...         try:
        ...             printer.tell("three")
        ...         except MailboxFull as full:
        ...             print(full)
        ...         await trio.testing.wait_all_tasks_blocked()
        >>> import trio.testing
        >>> trio.run(main)
        the mailbox of 'printer' is full: it holds 2 messages
        one
        two

        Args:
            message: The message, of the actor's own type.

        Raises:
            MailboxFull: The mailbox is full; the message was not taken.
            ActorStopped: The actor is stopped; the message was not taken.
            RuntimeError: The caller is in another thread.
        """
        if get_ident() != self._thread:
            self._check_thread("tell")
        self._put(message)

    async def ask(self, message: M, *, within: float) -> Any:
        """Send a message and wait for the answer of :meth:`Actor.receive <omni_actors.actors.actor.Actor.receive>`.

        A checkpoint. When the ask is cancelled or its time is over, the message is withdrawn: a waiting message leaves
        the mailbox, and the handling of a message is cancelled. An ask that is already cancelled on entry sends
        nothing.

        >>> import trio
        >>> from omni_actors.actors import Actor, open_supervisor
        >>> class Slow(Actor[float]):
        ...     async def receive(self, seconds: float) -> str:
        ...         await trio.sleep(seconds)
        ...         return f"slept {seconds} s"
        >>> async def main() -> None:
        ...     async with open_supervisor() as root:
        ...         slow = root.start(Slow, name="slow")
        ...         try:
        ...             await slow.ask(60.0, within=0.05)
        ...         except trio.TooSlowError:
        ...             print("too slow")
        ...         print(await slow.ask(0.01, within=5))  # the sleep of 60 s was cancelled
        >>> trio.run(main)
        too slow
        slept 0.01 s

        Args:
            message: The message, of the actor's own type.
            within: Seconds until the answer must be there. A restart of the actor counts too.

        Returns:
            The value that ``receive`` returned, or that was given to a deferred :class:`Reply`.

        Raises:
            trio.TooSlowError: There was no answer in time.
            Refusal: The actor's answer is an error.
            ActorCrashed: The actor crashed while it held the message.
            ActorStopped: The actor is stopped, or was stopped while it held the message.
            MailboxFull: The mailbox is full; raised at once.
            AskCycle: An actor asks itself, or asks an actor that waits for it; raised at once.
            RuntimeError: The caller is in another thread.
        """
        self._check_thread("ask")
        await trio.lowlevel.checkpoint_if_cancelled()
        caller = current_cell.get()
        if caller is not None and caller.task is not trio.lowlevel.current_task():
            caller = None  # a task beside receive: to wait in it blocks no actor
        if caller is not None:
            self._refuse_cycle(caller)
            caller.asking = self._cell
        try:
            with trio.fail_after(within):
                reply = Reply(message)
                reply.cell = self._cell
                self._put(reply)
                return await reply.wait()
        finally:
            if caller is not None:
                caller.asking = None

    def signal(self, key: Hashable, value: object = None) -> None:
        """Set a signal: control state that is handled before the messages that wait, and is never refused.

        A newer value replaces an older value of the same key that was not yet handled. A stopped actor ignores signals.
        :meth:`Actor.on_signal <omni_actors.actors.actor.Actor.on_signal>` has an example.

        Args:
            key: The name of the signal.
            value: The latest state, best cumulative ("acknowledged up to 17", not "2 more").

        Raises:
            RuntimeError: The caller is in another thread.
        """
        self._check_thread("signal")
        self._cell.mailbox.signal(key, value)

    def stop(self) -> None:
        """Ask the actor to end after its current setup or message, or instead of its next incarnation. Does not wait.

        The actor begins none of the messages that wait: their asks fail. The request is never lost or refused.

        >>> import trio
        >>> from omni_actors.actors import Actor, ActorStopped, open_supervisor
        >>> class Worker(Actor[str]):
        ...     async def receive(self, message: str) -> None: ...
        ...     async def teardown(self) -> None:
        ...         print("torn down")
        >>> async def main() -> None:
        ...     async with open_supervisor() as root:
        ...         worker = root.start(Worker, name="worker")
        ...         await worker.wait_ready()
        ...         worker.stop()
        ...         await worker.wait_stopped()
        ...         try:
        ...             worker.tell("more work")
        ...         except ActorStopped as stopped:
        ...             print(stopped)
        >>> trio.run(main)
        torn down
        actor 'worker' is stopped

        Raises:
            RuntimeError: The caller is in another thread.
        """
        self._check_thread("stop")
        self._cell.stop()

    def watch(self, watcher: ActorRef[Any]) -> None:
        """Send ``watcher`` the signal ``("down", name)`` with a :class:`Down` at the end of each incarnation.

        If this actor is stopped already, the signal is sent at once.

        >>> import trio
        >>> from omni_actors.actors import Actor, open_supervisor
        >>> class Fragile(Actor[str]):
        ...     async def receive(self, message: str) -> None:
        ...         raise ValueError(message)
        >>> class Nurse(Actor[str]):
        ...     async def receive(self, message: str) -> None: ...
        ...     async def on_signal(self, key, value) -> None:
        ...         print(key, repr(value.error), "for good" if value.final else "to be restarted")
        >>> async def main() -> None:
        ...     async with open_supervisor() as root:
        ...         fragile = root.start(Fragile, name="fragile")
        ...         fragile.watch(root.start(Nurse, name="nurse"))
        ...         fragile.tell("ouch")
        ...         await trio.sleep(0.2)
        >>> trio.run(main)
        ('down', 'fragile') ValueError('ouch') to be restarted

        Args:
            watcher: The actor whose :meth:`~omni_actors.actors.actor.Actor.on_signal` is called.
        """
        if self._cell.state == "stopped":
            watcher.signal(("down", self.name), Down(self, self._cell.last_error, True))
        else:
            self._cell.watchers.add(watcher)

    def unwatch(self, watcher: ActorRef[Any]) -> None:
        """Send ``watcher`` no more signals about this actor.

        Args:
            watcher: The actor that was given to :meth:`watch`. An actor that never watched is no error.
        """
        self._cell.watchers.discard(watcher)

    @property
    def state(self) -> State:
        """The actor's state at this moment."""
        return self._cell.state

    @property
    def failures(self) -> int:
        """The number of the latest failures in a row."""
        return self._cell.failures

    @property
    def restart_at(self) -> float | None:
        """The trio time at which the next incarnation begins, while the actor waits for it; otherwise ``None``."""
        return self._cell.restart_at

    @property
    def depth(self) -> int:
        """The number of messages that wait in the mailbox."""
        return len(self._cell.mailbox.queue)

    async def wait_ready(self) -> None:
        """Wait until an incarnation runs: its setup has returned. A cancelled wait changes nothing.

        Raises:
            ActorStopped: The actor is stopped, so no incarnation will run.
        """
        await self._cell.ready.wait()
        if self._cell.state == "stopped":
            raise ActorStopped(self.name)

    async def wait_stopped(self) -> None:
        """Wait for the end of the last incarnation, its teardown included. A cancelled wait changes nothing."""
        await self._cell.wait_stopped()

    def _check_thread(self, call: str) -> None:
        check_thread(self._thread, f"actor {self.name!r}", call)

    def _refuse_cycle(self, caller: Target) -> None:
        names = [caller.name]
        cell: Target | None = self._cell
        while cell is not None:
            names.append(cell.name)
            if cell is caller:
                raise AskCycle(names)
            cell = cell.asking


@dataclass(frozen=True, slots=True)
class Down:
    """The end of one incarnation, told to every actor that :meth:`watches <ActorRef.watch>`."""

    ref: ActorRef[Any]
    """The actor whose incarnation ended."""
    error: Exception | None
    """The failure that ended the incarnation; ``None`` when the actor was stopped or cancelled."""
    final: bool
    """Whether no other incarnation follows."""
