"""The running side of an actor: its mailbox, its task, its state over all its lives."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVarTuple

import trio

from omni_actors.actors.actor import Actor
from omni_actors.actors.errors import ActorCrashed, ActorStopped, Refusal
from omni_actors.actors.mailbox import Mailbox
from omni_actors.actors.ref import ActorRef, Down, State, Target, current_cell
from omni_actors.actors.reply import Reply
from omni_actors.actors.tree import Branch, describe

Ts = TypeVarTuple("Ts")

logger = logging.getLogger(__name__)

BATCH = 64
"""Messages handled in a row without a checkpoint (when handling them needs none)."""

TEARDOWN_S = 5.0
"""Seconds that a teardown may take."""


class Cell:
    """One actor, over all its lives."""

    def __init__(self, name: str, factory: Callable[[], Actor[Any]], capacity: int) -> None:
        self.name = name
        self.factory = factory
        self.mailbox = Mailbox(name, capacity)
        self.state: State = "starting"
        self.ready = trio.Event()
        """Set while a life is running, and at the end, so that nobody waits in vain."""
        self.stop_wished = trio.Event()
        self.stopped = trio.Event()
        self.ready_at: float | None = None
        """When the setup of the latest life returned."""
        self.restarts = 0
        self.failures = 0
        """Failures in a row."""
        self.restart_at: float | None = None
        """When the next life begins (trio time), between two."""
        self.last_error: Exception | None = None
        self.watchers: set[ActorRef[Any]] = set()
        self.task: trio.lowlevel.Task | None = None
        self.asking: Target | None = None
        """Whom the actor's own task waits for."""
        self.current: Reply | None = None
        self.deferred: set[Reply] = set()
        self._nursery: trio.Nursery | None = None
        self._turn: trio.CancelScope | None = None
        self._error: Exception | None = None
        self.ref: ActorRef[Any] = ActorRef(self)

    # --- for the supervisor ------------------------------------------------------------------------------------------

    async def live(self) -> Exception | None:
        """One life. Returns why it ended: an exception, or ``None`` for a wish to stop. Cancellation goes through,
        after the teardown."""
        self.state, self.ready_at, self._error = "starting", None, None
        self.task = trio.lowlevel.current_task()
        current_cell.set(self)
        actor: Actor[Any] | None = None
        try:
            async with trio.open_nursery() as self._nursery:
                with self._noted():
                    newborn = self._newborn()
                    await newborn.setup()
                    actor = newborn
                    self.state, self.ready_at = "running", trio.current_time()
                    self.ready.set()
                    while not self.mailbox.stopping:
                        with trio.CancelScope() as self._turn:
                            await self._serve(actor)
                        self.current = None  # an interrupted one: its asker has gone
                self.state = "stopping"
                self._nursery.cancel_scope.cancel()
        except BaseException:
            if self._error is not None:  # nobody else hears of it
                logger.error("actor %r failed on its way out", self.name, exc_info=self._error)
            raise
        finally:
            self.state = "stopping"
            if self.ready.is_set():
                self.ready = trio.Event()
            self._fail_held()
            if actor is not None:
                await self._tear_down(actor)
            self.task = self._turn = self._nursery = None
            self._tell_watchers(self._error, final=False)
        return self._error

    def close(self) -> None:
        """The end: refuse what is in the mailbox and what will come."""
        self.state = "stopped"
        left = self.mailbox.close()
        if left:
            logger.info("actor %r stopped with %d messages that it had not begun", self.name, len(left))
        for message in left:
            if message.__class__ is Reply:
                message.fail(ActorStopped(self.name))
        self.stopped.set()
        self.stop_wished.set()
        self.ready.set()
        self._tell_watchers(self._error, final=True)
        self.watchers.clear()

    async def wait_stopped(self) -> None:
        await self.stopped.wait()

    def tree(self) -> Branch:
        return Branch(
            name=self.name,
            kind="actor",
            state=self.state,
            depth=len(self.mailbox.queue),
            capacity=self.mailbox.capacity,
            restarts=self.restarts,
            failures=self.failures,
            last_error=describe(self.last_error),
        )

    # --- for the actor and its refs ----------------------------------------------------------------------------------

    def start_soon(self, function: Callable[[*Ts], Awaitable[object]], *args: *Ts) -> None:
        if self._nursery is None:
            raise RuntimeError(f"actor {self.name!r} has no life to run a task in")
        self._nursery.start_soon(self._beside, function, args, name=f"{self.name}: {function}")

    def stop(self) -> None:
        self.mailbox.stop()
        self.stop_wished.set()

    def defer(self) -> Reply | None:
        reply = self.current
        if reply is not None and not reply.deferred:
            reply.deferred = True
            if not reply.settled:
                self.deferred.add(reply)
        return reply

    def interrupt(self) -> None:
        """Cancel the handling of the current message; the life goes on."""
        if self._turn is not None:
            self._turn.cancel()

    # --- one life ----------------------------------------------------------------------------------------------------

    def _newborn(self) -> Actor[Any]:
        """The object of this life. Raises ``TypeError`` if the factory makes no actor, or gives the same one again."""
        made = self.factory()
        if not isinstance(made, Actor):
            raise TypeError(f"the factory of actor {self.name!r} made {made!r}, which is no Actor")
        if hasattr(made, "_cell"):
            raise TypeError(f"the factory of actor {self.name!r} gave the {type(made).__name__} of an earlier life")
        made._cell = self
        return made

    async def _serve(self, actor: Actor[Any]) -> None:
        """Handle messages until the wish to stop. Returns early when an interrupt came too late to be delivered in the
        message that it was meant for, so that it hits no other."""
        mailbox, queue, receive = self.mailbox, self.mailbox.queue, actor.receive
        left = BATCH
        while True:
            while mailbox.signals and not mailbox.stopping:
                key = next(iter(mailbox.signals))
                await actor.on_signal(key, mailbox.signals.pop(key))
            if mailbox.stopping:
                return
            if not queue:
                await mailbox.wait()
                left = BATCH
                continue
            left -= 1
            if not left:
                left = BATCH
                await trio.lowlevel.checkpoint()
            message = queue.popleft()
            if message.__class__ is not Reply:
                try:
                    await receive(message)
                except Refusal as refusal:
                    logger.warning("actor %r refused a message that nobody waits for: %s", self.name, refusal)
            elif not message.settled:
                await self._answer(actor, message)
                if self._turn is not None and self._turn.cancel_called:
                    return

    async def _answer(self, actor: Actor[Any], reply: Reply) -> None:
        self.current = reply
        try:
            value = await actor.receive(reply.message)
        except Refusal as refusal:
            reply.fail(refusal)
        except Exception as error:
            reply.fail(ActorCrashed(self.name, error))
            raise
        else:
            if not reply.deferred:
                reply.answer(value)
        if self.current is reply:
            self.current = None

    async def _beside(self, function: Callable[..., Awaitable[object]], args: tuple[Any, ...]) -> None:
        with self._noted():
            await function(*args)
            return
        if self._nursery is not None:
            self._nursery.cancel_scope.cancel()

    @contextmanager
    def _noted(self) -> Iterator[None]:
        """A failure of the block is noted and goes no further. Cancellation goes through, but not beside a failure (a
        nursery of the actor's own gives a group of both): then it is as if the failure had taken its place."""
        try:
            yield
        except Exception as error:
            self._note(error)
        except BaseExceptionGroup as group:
            failures, rest = group.split(Exception)
            if failures is None:
                raise
            self._note(failures)
            if rest is not None and (others := rest.split(trio.Cancelled)[1]) is not None:
                raise others from None

    def _note(self, error: Exception) -> None:
        """The first failure ends the life; what fails on the way out is logged."""
        if self._error is None:
            self._error = error
        else:
            logger.error("actor %r failed on its way out", self.name, exc_info=error)

    def _fail_held(self) -> None:
        """Fail the asks that this life took and did not answer."""
        held = list(self.deferred)
        if self.current is not None:
            held.append(self.current)
            self.current = None
        for reply in held:
            reply.fail(ActorStopped(self.name) if self._error is None else ActorCrashed(self.name, self._error))
        self.deferred.clear()

    def _tell_watchers(self, error: Exception | None, *, final: bool) -> None:
        for watcher in self.watchers:
            watcher.signal(("down", self.name), Down(self.ref, error, final))

    async def _tear_down(self, actor: Actor[Any]) -> None:
        patience = trio.move_on_after(TEARDOWN_S, shield=True)
        try:
            with patience:
                await actor.teardown()
        except Exception:  # also what its own tasks raised when its time was over
            logger.exception("teardown of actor %r failed", self.name)
        if patience.cancelled_caught:
            logger.error("teardown of actor %r took more than %g s and was cut short", self.name, TEARDOWN_S)
