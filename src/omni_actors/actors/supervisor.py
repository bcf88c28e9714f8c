"""Supervisors: owners of actors, which restart failed actors and give up after too many failures."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar, get_args

import trio

from omni_actors.actors.actor import Actor, check_factory
from omni_actors.actors.cell import Cell
from omni_actors.actors.errors import ActorCrashed, ActorStopped, Escalation, ProcessDied, Renewed
from omni_actors.actors.ref import ActorRef, State
from omni_actors.actors.rest_for_one import RestForOne
from omni_actors.actors.restarts import Restarts, Strategy
from omni_actors.actors.supervised import Supervised
from omni_actors.actors.thread import check_thread, get_ident
from omni_actors.actors.tree import Branch, describe

M = TypeVar("M")

logger = logging.getLogger(__name__)

DEFAULT_CAPACITY = 256
"""Messages that a mailbox holds unless :meth:`Supervisor.start` is given another number."""

STOP_S = 10.0
"""Seconds after which the children of a stopping supervisor, all together, are cancelled."""


class Supervisor:
    """The owner of actors and of other supervisors, made by :func:`open_supervisor` or by :meth:`supervisor`.

    A child that was asked to stop leaves the tree when it has ended. A child that fails is restarted by the strategy; a
    child that raises :class:`~omni_actors.actors.errors.Renewed` is restarted alone and at once. When the failures in a
    row exceed the limit, the supervisor ends its other children and fails itself. For the supervisor above, that is a
    failure like any other; out of the topmost supervisor comes an :class:`~omni_actors.actors.errors.Escalation`.
    """

    def __init__(self, name: str, strategy: Strategy, restarts: Restarts) -> None:
        if strategy not in get_args(Strategy):
            known = ", ".join(get_args(Strategy))
            raise ValueError(f"supervisor {name!r}: there is no strategy {strategy!r}; choose one of {known}")
        self.name = name
        self.strategy = strategy
        self.policy = restarts
        self.state: State = "starting"
        self.ready_at: float | None = None
        self.restarts = 0
        self.failures = 0
        self.restart_at: float | None = None
        self.last_error: Exception | None = None
        self.stop_requested = trio.Event()
        self.stopped = trio.Event()
        self._children: dict[str, Supervised] = {}
        self._nursery: trio.Nursery | None = None
        self._order: RestForOne | None = None
        self._thread = get_ident()
        self.escalation: Escalation | None = None
        """The error with which the supervisor gave up."""
        self._failed: Supervised | None = None

    def __repr__(self) -> str:
        return f"<Supervisor {self.name} {self.state}, {len(self._children)} children>"

    def start(self, factory: Callable[[], Actor[M]], *, name: str, capacity: int = DEFAULT_CAPACITY) -> ActorRef[M]:
        """Start an actor. Does not wait for the actor's setup: messages may be sent at once.

        >>> import trio
        >>> from omni_actors.actors import Actor, open_supervisor
        >>> class Greeter(Actor[str]):
        ...     def __init__(self, greeting: str) -> None:
        ...         self.greeting = greeting
        ...     async def receive(self, name: str) -> str:
        ...         return f"{self.greeting}, {name}"
        >>> async def main() -> None:
        ...     async with open_supervisor() as root:
        ...         greeter = root.start(lambda: Greeter("Hello"), name="greeter")
        ...         print(await greeter.ask("Ada", within=1))
        >>> trio.run(main)
        Hello, Ada

        Args:
            factory: Called for each incarnation; returns a new actor. A class without arguments is a factory.
            name: The actor's name, unique under this supervisor.
            capacity: Messages that the mailbox holds.

        Returns:
            The ref of the actor, valid over all its incarnations (:meth:`ActorRef.wait_ready
            <omni_actors.actors.ref.ActorRef.wait_ready>` waits for the first).

        Raises:
            TypeError: ``factory`` cannot make an actor. (An actor object is no factory: one object serves one
                incarnation.)
            ValueError: The name is taken, or ``capacity`` is less than 1.
            RuntimeError: The supervisor is stopping, or the caller is in another thread.
        """
        check_factory(factory)
        cell = Cell(name, factory, capacity)
        self._start(cell)
        return cell.ref

    def supervisor(
        self, name: str, *, strategy: Strategy = "one_for_one", restarts: Restarts | None = None
    ) -> Supervisor:
        """Start a supervisor as a child of this one. A restarted supervisor starts the children that it had.

        >>> import trio
        >>> from omni_actors.actors import Actor, Restarts, open_supervisor
        >>> class Idle(Actor[str]):
        ...     async def receive(self, message: str) -> None: ...
        >>> async def main() -> None:
        ...     async with open_supervisor("app") as root:
        ...         pool = root.supervisor("pool", strategy="one_for_all", restarts=Restarts(limit=None))
        ...         for name in ("reader", "writer"):
        ...             await pool.start(Idle, name=name).wait_ready()
        ...         print(root.tree())
        >>> trio.run(main)
        app [running]
          pool [running]
            reader [running] 0/256
            writer [running] 0/256

        Args:
            name: The child's name, unique under this supervisor.
            strategy: The children that are restarted together, see :data:`Strategy`.
            restarts: When to restart and when to give up; :class:`Restarts` with its defaults if not given.

        Returns:
            The child, which runs already.

        Raises:
            ValueError: The name is taken, or the strategy is unknown.
            RuntimeError: This supervisor is stopping, or the caller is in another thread.
        """
        child = Supervisor(name, strategy, restarts or Restarts())
        self._start(child)
        return child

    def stop(self) -> None:
        """Ask all children to end in good order. Does not wait: see :meth:`wait_stopped`.

        The child that was started last ends first, each after its current message. Children that take longer than
        :data:`STOP_S` seconds, all together, are cancelled.

        Raises:
            RuntimeError: The caller is in another thread.
        """
        check_thread(self._thread, f"supervisor {self.name!r}", "stop")
        self.stop_requested.set()

    async def wait_stopped(self) -> None:
        """Wait until all children have ended for good, teardowns included. A cancelled wait changes nothing."""
        await self.stopped.wait()

    def tree(self) -> Branch:
        """Return a snapshot of this supervisor and of everything below it.

        The ``str`` of a snapshot draws the tree; :meth:`supervisor` has an example.
        """
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

    async def run_incarnation(self) -> Exception | None:
        """Run the children until the supervisor gives up or is asked to stop.

        Returns:
            The error with which the supervisor gave up, or ``None`` when it was asked to stop.
        """
        self.state, self.ready_at, self.escalation = "running", trio.current_time(), None
        for child in self._children.values():
            child.failures = 0
        while True:
            self._failed = None
            try:
                async with trio.open_nursery() as self._nursery:
                    if self.strategy == "rest_for_one":
                        self._order = RestForOne(self, self._children, self._nursery)
                    self._nursery.start_soon(self._stop_when_requested, self._nursery.cancel_scope)
                    for child in list(self._children.values()):
                        self._nursery.start_soon(self._supervise, child, name=child.name)
            finally:
                self._nursery = self._order = None
            if self.escalation is None and self._failed is not None:
                await self.pause(self._failed)
            if self.escalation is not None or self._failed is None or self.stop_requested.is_set():
                self.state = "stopping"
                return self.escalation
            for child in self._children.values():
                child.restarts += 1

    def close(self) -> None:
        """Stop this supervisor and all its children for good."""
        for child in self._children.values():
            child.close()
        self._children.clear()
        self.state = "stopped"
        self.stop_requested.set()
        self.stopped.set()

    # --- the children ------------------------------------------------------------------------------------------------

    def _start(self, child: Supervised) -> None:
        check_thread(self._thread, f"supervisor {self.name!r}", "start")
        if self.stop_requested.is_set():
            raise RuntimeError(f"supervisor {self.name!r} is stopping")
        if child.name in self._children:
            raise ValueError(f"supervisor {self.name!r} has a child {child.name!r} already")
        self._children[child.name] = child
        if self._nursery is not None:  # else run_incarnation starts the child
            self._nursery.start_soon(self._supervise, child, name=child.name)

    async def _supervise(self, child: Supervised) -> None:
        """Run the incarnations of a child, one after the other."""
        if self._order is not None:
            if await self._order.supervise(child):
                self._remove(child)
            return
        while not child.stop_requested.is_set():
            error = await child.run_incarnation()
            if error is None:
                break
            if self._failed is not None:  # the child failed while it was cancelled because of another
                logger.error("%s under %s failed on its way out", child.name, self.name, exc_info=error)
                return
            if isinstance(error, Renewed):
                self.record_renewal(child, error)
                continue
            if self.record_failure(child, error):
                return
            if self.strategy == "one_for_all":
                self._failed = child
                if self._nursery is not None:
                    self._nursery.cancel_scope.cancel()
                return
            await self.pause(child)
            child.restarts += 1
        self._remove(child)

    def _remove(self, child: Supervised) -> None:
        child.close()
        del self._children[child.name]

    def record_renewal(self, child: Supervised, reason: Renewed) -> None:
        """Record that a child asked for its own restart. Called by the strategy.

        Args:
            child: The child, which begins its next incarnation at once.
            reason: The exception that ended the incarnation.
        """
        logger.info("%s under %s restarts as it asked: %s", child.name, self.name, reason)
        child.restarts += 1

    def record_failure(self, child: Supervised, error: Exception) -> bool:
        """Count a failure of a child, and escalate if the row exceeds the limit. Called by the strategy.

        Args:
            child: The child whose incarnation failed.
            error: The failure.

        Returns:
            Whether the supervisor gave up.
        """
        row = [child] if self.strategy == "one_for_one" else list(self._children.values())
        if child.ready_at is not None and trio.current_time() - child.ready_at >= self.policy.healthy_s:
            for member in row:
                member.failures = 0
        child.failures = 1 + max(member.failures for member in row)
        child.last_error = error
        over = self.policy.limit is not None and child.failures > self.policy.limit
        what = "giving up" if over else f"restart in {self.policy.delay(child.failures):g} s"
        # The message of a ProcessDied says everything; the traceback through this process adds nothing.
        trace = None if isinstance(error, ProcessDied) else error
        template = "%s under %s failed, %d in a row: %s (%s)"
        logger.error(template, child.name, self.name, child.failures, error, what, exc_info=trace)
        if over:
            self.escalation = self.escalation or Escalation(child.name, child.failures, error)
            if self._nursery is not None:
                self._nursery.cancel_scope.cancel()
        return over

    async def pause(self, child: Supervised) -> None:
        """Wait for the backoff to pass. Called by the strategy. A request to stop ends the wait early.

        Args:
            child: The child that is about to be restarted.
        """
        child.state = "waiting"
        stop_requested = child.stop_requested if self.strategy == "one_for_one" else self.stop_requested
        child.restart_at = trio.current_time() + self.policy.delay(child.failures)
        with trio.move_on_at(child.restart_at):
            await stop_requested.wait()
        child.restart_at = None

    async def _stop_when_requested(self, scope: trio.CancelScope) -> None:
        await self.stop_requested.wait()
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
    """Open the topmost supervisor of a tree.

    The normal end of the block calls :meth:`Supervisor.stop` and waits. An exception or a cancellation of the block
    cancels every actor where it waits. Either way, when the block is left, all teardowns have run, and asks without an
    answer have failed.

    >>> import trio
    >>> from omni_actors.actors import Actor, Escalation, Restarts, open_supervisor
    >>> class Broken(Actor[str]):
    ...     async def setup(self) -> None:
    ...         raise OSError("no such device")
    ...     async def receive(self, message: str) -> None: ...
    >>> async def main() -> None:
    ...     async with open_supervisor("app", restarts=Restarts(limit=2, first_s=0.01)) as root:
    ...         root.start(Broken, name="camera")
    ...         await trio.sleep_forever()
    >>> try:
    ...     trio.run(main)
    ... except Escalation as escalation:
    ...     print(escalation)
    'camera' failed 3 times in a row; last: OSError: no such device

    Args:
        name: The name of the supervisor in logs and in :meth:`Supervisor.tree`.
        strategy: The children that are restarted together, see :data:`Strategy`.
        restarts: When to restart and when to give up; :class:`Restarts` with its defaults if not given.

    Yields:
        The supervisor.

    Raises:
        Escalation: The supervisor gave up, which also cancelled the block.
        ValueError: The strategy is unknown.
        BaseException: An exception of the block comes out unchanged.
    """
    root = Supervisor(name, strategy, restarts or Restarts())
    failure: BaseException | None = None

    async def run(scope: trio.CancelScope) -> None:
        if await root.run_incarnation() is not None:
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
    escalation = root.escalation  # set also when the block failed because of the escalation
    try:
        if escalation is not None and (failure is None or _only_consequences(failure)):
            raise escalation
        if escalation is not None and failure is not None:
            raise BaseExceptionGroup(f"supervisor {name!r} gave up, and its block failed", [escalation, failure])
        if failure is not None:
            raise failure
    finally:
        del failure, escalation  # no cycle of frame and traceback


def _only_consequences(failure: BaseException) -> bool:
    """Whether a block failed only because its supervisor gave up: by a cancellation, or by an ask of an ended actor."""
    consequences = (trio.Cancelled, ActorStopped, ActorCrashed)
    if isinstance(failure, BaseExceptionGroup):
        return failure.split(consequences)[1] is None
    return isinstance(failure, consequences)
