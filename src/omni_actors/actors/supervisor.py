"""Supervisors: who restarts what, when, and when to give up."""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Literal, TypeVar, get_args

import trio

from omni_actors.actors.actor import Actor
from omni_actors.actors.cell import Cell
from omni_actors.actors.errors import ActorCrashed, ActorStopped, Escalation, ProcessDied, Renewed
from omni_actors.actors.ref import ActorRef, State
from omni_actors.actors.rest_for_one import RestForOne
from omni_actors.actors.supervised import Supervised
from omni_actors.actors.thread import check_thread, get_ident
from omni_actors.actors.tree import Branch, describe

M = TypeVar("M")

logger = logging.getLogger(__name__)

Strategy = Literal["one_for_one", "one_for_all", "rest_for_one"]
"""Which children are restarted after a failure of one, as in Erlang/OTP: that one alone (``one_for_one``), all children
of the supervisor (``one_for_all``: they share state), or that one and those that were started after it
(``rest_for_one``: each may depend on those before it)."""

DEFAULT_CAPACITY = 256
"""Messages that a mailbox holds."""

STOP_S = 10.0
"""Seconds that the children of a supervisor have, all together, to end in good order before they are cancelled."""


@dataclass(frozen=True, slots=True)
class Restarts:
    """When to restart and when to give up.

    Failures are counted *in a row*, and a life that had been ready for ``healthy_s`` seconds when it failed starts the
    row anew: a start that fails slowly counts like one that fails at once. After failure ``n`` of a row the restart
    waits ``first_s * 2 ** (n - 1)`` seconds, at most ``cap_s``. Failure ``limit + 1`` escalates; ``None``: none does.
    With ``one_for_all`` and ``rest_for_one`` all children share one row. A supervisor that is restarted itself counts
    its children's anew.
    """

    limit: int | None = 5
    first_s: float = 0.05
    cap_s: float = 10.0
    healthy_s: float = 60.0

    def delay(self, failures: int) -> float:
        """Seconds to wait after so many failures in a row."""
        return min(self.cap_s, self.first_s * 2.0 ** min(failures - 1, 100))


class Supervisor:
    """Owns actors and other supervisors. Made by :func:`open_supervisor` or by :meth:`supervisor`.

    A child that ends because it was asked to stop is not restarted; it leaves the tree. A child that fails is restarted
    by the strategy, one that raises :class:`~omni_actors.actors.errors.Renewed` alone and at once. When failures in a
    row exceed the limit, the supervisor ends its other children and fails itself: that is a failure like another for
    the supervisor above; from the topmost one it comes out as :class:`~omni_actors.actors.errors.Escalation`.
    """

    def __init__(self, name: str, strategy: Strategy, restarts: Restarts) -> None:
        if strategy not in get_args(Strategy):
            known = ", ".join(get_args(Strategy))
            raise ValueError(f"supervisor {name!r}: there is no strategy {strategy!r}; it is one of {known}")
        self.name = name
        self.strategy = strategy
        self.policy = restarts
        self.state: State = "starting"
        self.ready_at: float | None = None
        self.restarts = 0
        self.failures = 0
        self.restart_at: float | None = None
        self.last_error: Exception | None = None
        self.stop_wished = trio.Event()
        self.stopped = trio.Event()
        self._children: dict[str, Supervised] = {}
        self._nursery: trio.Nursery | None = None
        self._order: RestForOne | None = None
        self._thread = get_ident()
        self.escalation: Escalation | None = None
        """Why it gave up, if it did."""
        self._failed: Supervised | None = None

    def __repr__(self) -> str:
        return f"<Supervisor {self.name} {self.state}, {len(self._children)} children>"

    def start(self, factory: Callable[[], Actor[M]], *, name: str, capacity: int = DEFAULT_CAPACITY) -> ActorRef[M]:
        """Start an actor; ``factory`` makes the object of each of its lives. Does not wait for its setup: messages may
        be sent at once (or see :meth:`ActorRef.wait_ready`). Names are unique under one supervisor.

        Raises ``TypeError`` for a factory that cannot make an actor (an actor is none: it would be the object of one
        life only), ``ValueError`` for a name that is taken, and ``RuntimeError`` when the supervisor is stopping or
        belongs to another thread.
        """
        _check_factory(factory)
        cell = Cell(name, factory, capacity)
        self._start(cell)
        return cell.ref

    def supervisor(
        self, name: str, *, strategy: Strategy = "one_for_one", restarts: Restarts | None = None
    ) -> Supervisor:
        """Start a supervisor as a child. If it is restarted, it starts the children that it had anew."""
        child = Supervisor(name, strategy, restarts or Restarts())
        self._start(child)
        return child

    def stop(self) -> None:
        """Let all children end in good order, the last started first, each after the message it is at; those that take
        longer than :data:`STOP_S` are cancelled. Does not wait: see :meth:`wait_stopped`."""
        check_thread(self._thread, f"supervisor {self.name!r}", "stop")
        self.stop_wished.set()

    async def wait_stopped(self) -> None:
        """Wait until all children have ended for good, their teardowns included."""
        await self.stopped.wait()

    def tree(self) -> Branch:
        """What is below this supervisor, as it is now."""
        return Branch(
            name=self.name,
            kind="supervisor",
            state=self.state,
            restarts=self.restarts,
            failures=self.failures,
            last_error=describe(self.last_error),
            children=tuple(child.tree() for child in self._children.values()),
        )

    # --- for the supervisor above ------------------------------------------------------------------------------------

    async def live(self) -> Exception | None:
        """Run the children until the supervisor gives up (returns why) or is asked to stop (returns ``None``)."""
        self.state, self.ready_at, self.escalation = "running", trio.current_time(), None
        for child in self._children.values():
            child.failures = 0
        while True:
            self._failed = None
            try:
                async with trio.open_nursery() as self._nursery:
                    if self.strategy == "rest_for_one":
                        self._order = RestForOne(self, self._children, self._nursery)
                    self._nursery.start_soon(self._stop_when_wished, self._nursery.cancel_scope)
                    for child in list(self._children.values()):
                        self._nursery.start_soon(self._keep, child, name=child.name)
            finally:
                self._nursery = self._order = None
            if self.escalation is None and self._failed is not None:
                await self.pause(self._failed)
            if self.escalation is not None or self._failed is None or self.stop_wished.is_set():
                self.state = "stopping"
                return self.escalation
            for child in self._children.values():
                child.restarts += 1

    def close(self) -> None:
        """The end, for all children too."""
        for child in self._children.values():
            child.close()
        self._children.clear()
        self.state = "stopped"
        self.stop_wished.set()
        self.stopped.set()

    # --- the children ------------------------------------------------------------------------------------------------

    def _start(self, child: Supervised) -> None:
        check_thread(self._thread, f"supervisor {self.name!r}", "start")
        if self.stop_wished.is_set():
            raise RuntimeError(f"supervisor {self.name!r} is stopping")
        if child.name in self._children:
            raise ValueError(f"supervisor {self.name!r} has a child {child.name!r} already")
        self._children[child.name] = child
        if self._nursery is not None:  # else the next turn of live starts it
            self._nursery.start_soon(self._keep, child, name=child.name)

    async def _keep(self, child: Supervised) -> None:
        """Run a child's lives, one after the other."""
        if self._order is not None:
            if await self._order.keep(child):
                self._leave(child)
            return
        while not child.stop_wished.is_set():
            error = await child.live()
            if error is None:
                break
            if self._failed is not None:  # it failed while it was cancelled for the sake of another
                logger.error("%s under %s failed on its way out", child.name, self.name, exc_info=error)
                return
            if isinstance(error, Renewed):
                self.renew(child, error)
                continue
            if self.give_up(child, error):
                return
            if self.strategy == "one_for_all":
                self._failed = child
                if self._nursery is not None:
                    self._nursery.cancel_scope.cancel()
                return
            await self.pause(child)
            child.restarts += 1
        self._leave(child)

    def _leave(self, child: Supervised) -> None:
        child.close()
        del self._children[child.name]

    def renew(self, child: Supervised, wish: Renewed) -> None:
        """Note that a child wished for another life."""
        logger.info("%s under %s begins another life: %s", child.name, self.name, wish)
        child.restarts += 1

    def give_up(self, child: Supervised, error: Exception) -> bool:
        """Count a failure; escalate if it is one too many."""
        row = [child] if self.strategy == "one_for_one" else list(self._children.values())
        if child.ready_at is not None and trio.current_time() - child.ready_at >= self.policy.healthy_s:
            for member in row:
                member.failures = 0
        child.failures = 1 + max(member.failures for member in row)
        child.last_error = error
        over = self.policy.limit is not None and child.failures > self.policy.limit
        what = "giving up" if over else f"restart in {self.policy.delay(child.failures):g} s"
        # A process that died says how in its message; the way through this process's code says nothing more.
        trace = None if isinstance(error, ProcessDied) else error
        template = "%s under %s failed, %d in a row: %s (%s)"
        logger.error(template, child.name, self.name, child.failures, error, what, exc_info=trace)
        if over:
            self.escalation = self.escalation or Escalation(child.name, child.failures, error)
            if self._nursery is not None:
                self._nursery.cancel_scope.cancel()
        return over

    async def pause(self, child: Supervised) -> None:
        """The backoff. It ends early when there is a wish to stop."""
        child.state = "waiting"
        stop_wished = child.stop_wished if self.strategy == "one_for_one" else self.stop_wished
        child.restart_at = trio.current_time() + self.policy.delay(child.failures)
        with trio.move_on_at(child.restart_at):
            await stop_wished.wait()
        child.restart_at = None

    async def _stop_when_wished(self, scope: trio.CancelScope) -> None:
        await self.stop_wished.wait()
        self.state = "stopping"
        with trio.move_on_after(STOP_S) as patience:
            for child in reversed(list(self._children.values())):
                child.stop()
                await child.wait_stopped()
        if patience.cancelled_caught:
            logger.error("children of %r took more than %g s to stop; cancelled", self.name, STOP_S)
        scope.cancel()


@asynccontextmanager
async def open_supervisor(
    name: str = "root", *, strategy: Strategy = "one_for_one", restarts: Restarts | None = None
) -> AsyncIterator[Supervisor]:
    """The topmost supervisor of a tree.

    Leaving the block normally is :meth:`Supervisor.stop`, waited for; leaving it by an exception or cancellation
    cancels every actor where it waits. Either way all teardowns have run when the block is left, and asks that had no
    answer have failed. When the supervisor gives up, the block is cancelled and
    :class:`~omni_actors.actors.errors.Escalation` comes out of it. An exception of the block comes out as it is.
    """
    root = Supervisor(name, strategy, restarts or Restarts())
    failure: BaseException | None = None

    async def run(scope: trio.CancelScope) -> None:
        if await root.live() is not None:
            scope.cancel()
        root.close()

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, nursery.cancel_scope, name=f"supervisor {name}")
            try:
                yield root
                root.stop()
                await root.wait_stopped()
            except BaseException as exception:  # raised again below, not wrapped in the nursery's group
                failure = exception
                nursery.cancel_scope.cancel()
    finally:
        root.close()
    escalation = root.escalation  # also one that was decided when the block failed for its sake
    try:
        if escalation is not None and (failure is None or _only_consequences(failure)):
            raise escalation
        if escalation is not None and failure is not None:
            raise BaseExceptionGroup(f"supervisor {name!r} gave up, and its block failed", [escalation, failure])
        if failure is not None:
            raise failure
    finally:
        del failure, escalation  # no cycle of frame and traceback


def _check_factory(factory: object) -> None:
    """Raise ``TypeError`` for what cannot make the object of each life."""
    if isinstance(factory, Actor):
        kind = type(factory).__name__
        raise TypeError(
            f"start() takes a function that makes a new actor for each life, not the actor {factory!r}: "
            f"pass the class, or lambda: {kind}(...)"
        )
    if not callable(factory):
        raise TypeError(f"start() takes a function that makes a new actor for each life, not {factory!r}")
    if isinstance(factory, type) and not issubclass(factory, Actor):
        raise TypeError(f"start() takes a function that makes an actor, and {factory.__qualname__} is no Actor")
    if inspect.isabstract(factory):
        name = getattr(factory, "__qualname__", factory)
        raise TypeError(f"{name} has no receive(): an actor must say what it does with a message")


def _only_consequences(failure: BaseException) -> bool:
    """Whether a block failed only because its supervisor gave up: it was cancelled, or asked what was ended."""
    consequences = (trio.Cancelled, ActorStopped, ActorCrashed)
    if isinstance(failure, BaseExceptionGroup):
        return failure.split(consequences)[1] is None
    return isinstance(failure, consequences)
