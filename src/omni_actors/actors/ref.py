"""The address of an actor: all that others hold of it."""

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
"""``waiting``: between two lives, for the backoff to pass. ``stopped`` is the end."""


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

    def stop(self) -> None: ...

    async def wait_stopped(self) -> None: ...


current_cell: contextvars.ContextVar[Target | None] = contextvars.ContextVar("current_cell", default=None)
"""The actor whose task, or whose task's child, runs."""


class ActorRef(Generic[M]):
    """Sends messages to one actor, over all its lives. To be used in the thread of its trio run: elsewhere ``tell``,
    ``ask``, ``signal`` and ``stop`` raise ``RuntimeError``. From another thread call them through
    :func:`trio.from_thread.run_sync` and :func:`trio.from_thread.run`."""

    __slots__ = ("__weakref__", "_cell", "_put", "_thread", "name")

    def __init__(self, cell: Target) -> None:
        self.name = cell.name
        self._cell = cell
        self._put = cell.mailbox.put
        self._thread = get_ident()

    def __repr__(self) -> str:
        return f"<ActorRef {self.name} {self._cell.state}>"

    def tell(self, message: M) -> None:
        """Put a message into the mailbox; no checkpoint, no answer. Messages from one sender arrive in order.

        Raises :class:`~omni_actors.actors.errors.MailboxFull` or :class:`~omni_actors.actors.errors.ActorStopped`: it
        was not taken. Otherwise it is handled once, unless the actor is stopped before, or not at all completed if the
        actor crashes or is stopped in it. A mailbox outlives crashes.
        """
        if get_ident() != self._thread:
            self._check_thread("tell")
        self._put(message)

    async def ask(self, message: M, *, within: float) -> Any:
        """Send a message and wait for what :meth:`Actor.receive <omni_actors.actors.actor.Actor.receive>` returns, for
        at most ``within`` seconds (also while the actor is restarted).

        Raises what :meth:`tell` does, at once, and :class:`trio.TooSlowError`;
        :class:`~omni_actors.actors.errors.Refusal` as the actor's answer;
        :class:`~omni_actors.actors.errors.ActorCrashed` if it crashed and
        :class:`~omni_actors.actors.errors.ActorStopped` if it was stopped while it held the message;
        :class:`~omni_actors.actors.errors.AskCycle`, at once, when an actor asks itself or one that waits for it.

        A checkpoint. When it is cancelled or its time is over, the message is withdrawn: it leaves the mailbox, and if
        it is being handled, the handling is cancelled. Already cancelled on entry, it sends nothing.
        """
        self._check_thread("ask")
        await trio.lowlevel.checkpoint_if_cancelled()
        caller = current_cell.get()
        if caller is not None and caller.task is not trio.lowlevel.current_task():
            caller = None  # a task beside receive: to wait in it blocks no actor
        if caller is not None:
            self._refuse_circle(caller)
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
        """Set a signal: mergeable state that is handled before the messages that wait, and never refused. A newer value
        replaces one of the same key that was not yet handled. To a stopped actor it says nothing."""
        self._check_thread("signal")
        self._cell.mailbox.signal(key, value)

    def stop(self) -> None:
        """Let the actor end after the setup or the message it is at (or instead of its next life). Messages that wait
        are not begun: their asks fail. Cannot be lost or refused; does not wait."""
        self._check_thread("stop")
        self._cell.stop()

    def watch(self, watcher: ActorRef[Any]) -> None:
        """From now on, whenever a life of this actor ends, send ``watcher`` the signal ``("down", name)`` with a
        :class:`~omni_actors.actors.tree.Down`. At once if it is stopped already."""
        if self._cell.state == "stopped":
            watcher.signal(("down", self.name), Down(self, self._cell.last_error, True))
        else:
            self._cell.watchers.add(watcher)

    def unwatch(self, watcher: ActorRef[Any]) -> None:
        self._cell.watchers.discard(watcher)

    @property
    def state(self) -> State:
        return self._cell.state

    @property
    def failures(self) -> int:
        """The latest failures in a row."""
        return self._cell.failures

    @property
    def restart_at(self) -> float | None:
        """When its next life begins (trio time), if it is between two."""
        return self._cell.restart_at

    @property
    def depth(self) -> int:
        """Messages that wait."""
        return len(self._cell.mailbox.queue)

    async def wait_ready(self) -> None:
        """Wait until a life is running. Raises :class:`~omni_actors.actors.errors.ActorStopped` if none will."""
        await self._cell.ready.wait()
        if self._cell.state == "stopped":
            raise ActorStopped(self.name)

    async def wait_stopped(self) -> None:
        """Wait for the end of the last life, its teardown included."""
        await self._cell.wait_stopped()

    def _check_thread(self, call: str) -> None:
        check_thread(self._thread, f"actor {self.name!r}", call)

    def _refuse_circle(self, caller: Target) -> None:
        names = [caller.name]
        cell: Target | None = self._cell
        while cell is not None:
            names.append(cell.name)
            if cell is caller:
                raise AskCycle(names)
            cell = cell.asking


@dataclass(frozen=True, slots=True)
class Down:
    """A life of an actor ended: what those who :meth:`watch <omni_actors.actors.ref.ActorRef.watch>` it are told."""

    ref: ActorRef[Any]
    error: Exception | None
    """Why it crashed; ``None`` when it was stopped or cancelled."""
    final: bool
    """Whether no other life follows."""
