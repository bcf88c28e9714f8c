"""The running side of an actor: mailbox, task and state over all incarnations."""

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
"""Messages that an actor may handle in a row without a checkpoint, when ``receive`` makes none."""

TEARDOWN_S = 5.0
"""Seconds after which a teardown is cancelled."""


class Cell:
    """The running side of one actor, over all incarnations. A supervisor owns the cell."""

    def __init__(self, name: str, factory: Callable[[], Actor[Any]], capacity: int) -> None:
        self.name = name
        self.factory = factory
        self.mailbox = Mailbox(name, capacity)
        self.state: State = "starting"
        self.ready = trio.Event()
        """Set while an incarnation runs, and when the actor is stopped for good, so that no waiter is left."""
        self.stop_requested = trio.Event()
        self.stopped = trio.Event()
        self.ready_at: float | None = None
        """The trio time at which the setup of the latest incarnation returned."""
        self.restarts = 0
        self.failures = 0
        """Failures in a row."""
        self.restart_at: float | None = None
        """The trio time at which the next incarnation begins, while the actor waits for it."""
        self.last_error: Exception | None = None
        self.watchers: set[ActorRef[Any]] = set()
        self.task: trio.lowlevel.Task | None = None
        self.asking: Target | None = None
        """The actor whose answer the actor's own task waits for."""
        self.current: Reply | None = None
        self.deferred: set[Reply] = set()
        self._nursery: trio.Nursery | None = None
        self._turn: trio.CancelScope | None = None
        self._error: Exception | None = None
        self.ref: ActorRef[Any] = ActorRef(self)

    # --- for the supervisor ------------------------------------------------------------------------------------------

    async def run_incarnation(self) -> Exception | None:
        """Run one incarnation.

        Cancellation goes through after the teardown.

        Returns:
            The failure that ended the incarnation, or ``None`` when the actor was asked to stop.
        """
        self.state, self.ready_at, self._error = "starting", None, None
        self.task = trio.lowlevel.current_task()
        current_cell.set(self)
        actor: Actor[Any] | None = None
        try:
            async with trio.open_nursery() as self._nursery:
                with self._recording_failure():
                    made = self._make_actor()
                    await made.setup()
                    actor = made
                    self.state, self.ready_at = "running", trio.current_time()
                    self.ready.set()
                    while not self.mailbox.stopping:
                        with trio.CancelScope() as self._turn:
                            await self._serve(actor)
                        self.current = None  # an interrupted message: its asker has gone
                self.state = "stopping"
                self._nursery.cancel_scope.cancel()
        except BaseException:
            if self._error is not None:  # the supervisor does not hear of this failure
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
        """Stop the actor for good: fail the asks in the mailbox, and refuse messages from now on."""
        self.state = "stopped"
        left = self.mailbox.close()
        if left:
            logger.info("actor %r stopped with %d unhandled messages", self.name, len(left))
        for message in left:
            if message.__class__ is Reply:
                message.fail(ActorStopped(self.name))
        self.stopped.set()
        self.stop_requested.set()
        self.ready.set()
        self._tell_watchers(self._error, final=True)
        self.watchers.clear()

    async def wait_stopped(self) -> None:
        """Wait until the actor is stopped for good."""
        await self.stopped.wait()

    def tree(self) -> Branch:
        """Return a snapshot of the actor."""
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
        """Run a task until the incarnation ends; see :meth:`~omni_actors.actors.actor.Actor.start_soon`."""
        if self._nursery is None:
            raise RuntimeError(f"actor {self.name!r} has no running incarnation that could own a task")
        self._nursery.start_soon(self._beside, function, args, name=f"{self.name}: {function}")

    def stop(self) -> None:
        """Ask the actor to end after its current setup or message."""
        self.mailbox.stop()
        self.stop_requested.set()

    def defer(self) -> Reply | None:
        """Take over the answering of the current ask; see :meth:`~omni_actors.actors.actor.Actor.defer`."""
        reply = self.current
        if reply is not None and not reply.deferred:
            reply.deferred = True
            if not reply.settled:
                self.deferred.add(reply)
        return reply

    def interrupt(self) -> None:
        """Cancel the handling of the current message; the incarnation goes on."""
        if self._turn is not None:
            self._turn.cancel()

    # --- one incarnation ----------------------------------------------------------------------------------------------

    def _make_actor(self) -> Actor[Any]:
        """Make the object of this incarnation.

        Raises:
            TypeError: The factory returned no actor, or the object of an earlier incarnation.
        """
        made = self.factory()
        if not isinstance(made, Actor):
            raise TypeError(f"the factory of actor {self.name!r} made {made!r}, which is not an Actor")
        if hasattr(made, "_cell"):
            raise TypeError(
                f"the factory of actor {self.name!r} returned the {type(made).__name__} of an earlier incarnation"
            )
        made._cell = self
        return made

    async def _serve(self, actor: Actor[Any]) -> None:
        """Handle signals and messages until the actor is asked to stop.

        Returns early after an interrupt that came too late to be delivered within the message that it was meant for, so
        that the interrupt hits no other message.
        """
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
                    logger.warning("actor %r refused a told message: %s", self.name, refusal)
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
        with self._recording_failure():
            await function(*args)
            return
        if self._nursery is not None:
            self._nursery.cancel_scope.cancel()

    @contextmanager
    def _recording_failure(self) -> Iterator[None]:
        """Record a failure of the block and swallow it. Cancellation goes through, unless the block raises a group of a
        cancellation and a failure (a nursery of the actor's own does): then only the failure counts."""
        try:
            yield
        except Exception as error:
            self._record_failure(error)
        except BaseExceptionGroup as group:
            failures, rest = group.split(Exception)
            if failures is None:
                raise
            self._record_failure(failures)
            if rest is not None and (others := rest.split(trio.Cancelled)[1]) is not None:
                raise others from None

    def _record_failure(self, error: Exception) -> None:
        """Keep the first failure, which ends the incarnation; log a failure on the way out."""
        if self._error is None:
            self._error = error
        else:
            logger.error("actor %r failed on its way out", self.name, exc_info=error)

    def _fail_held(self) -> None:
        """Fail the asks that this incarnation took and did not answer."""
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
        except Exception:  # also an exception of its own tasks when its time was over
            logger.exception("teardown of actor %r failed", self.name)
        if patience.cancelled_caught:
            logger.error("teardown of actor %r took more than %g s and was cut short", self.name, TEARDOWN_S)
