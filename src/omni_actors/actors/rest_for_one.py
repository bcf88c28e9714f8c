"""The strategy ``rest_for_one``: a failed child is restarted together with the children started after it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Protocol

import trio

from omni_actors.actors.cell import Cell
from omni_actors.actors.errors import Renewed
from omni_actors.actors.supervised import Supervised

logger = logging.getLogger(__name__)


class Owner(Protocol):
    """The supervisor whose children are restarted in order."""

    name: str
    stop_requested: trio.Event

    def record_renewal(self, child: Supervised, reason: Renewed) -> None: ...

    def record_failure(self, child: Supervised, error: Exception) -> bool: ...

    async def pause(self, child: Supervised) -> None: ...


class _Slot:
    """The place of one child in the order of start.

    The child's incarnation runs within ``scope``; ``idle`` is set while no incarnation runs; ``go`` lets the next
    incarnation begin.
    """

    def __init__(self) -> None:
        self.scope = trio.CancelScope()
        self.idle = trio.Event()
        self.go = trio.Event()
        self.has_run = False


class RestForOne:
    """The order in which the children of one incarnation of a supervisor end and restart.

    When a child fails, the younger children are cancelled one by one, the youngest first, each after the teardown of
    the one before. After the backoff all of these children begin again, the oldest first, each after the setup of the
    one before. A child that is started meanwhile begins after them. A failure of an older child meanwhile takes over:
    the restart begins anew from the older child. A failure of a child that is being cancelled is not counted.
    """

    def __init__(self, supervisor: Owner, children: Mapping[str, Supervised], nursery: trio.Nursery) -> None:
        self._supervisor = supervisor
        self._children = children
        self._nursery = nursery
        self._slots: dict[str, _Slot] = {}
        self._restarting = False
        self._failed: Supervised | None = None
        """The failed child whose younger siblings are being ended at the moment."""
        self._beginning = trio.CancelScope()
        """The scope of the task that lets children begin again, while there is one."""

    async def supervise(self, child: Supervised) -> bool:
        """Run the incarnations of a child, one after the other.

        Returns:
            ``True`` when the child was asked to stop, ``False`` when the supervisor gave up.
        """
        slot = self._slots[child.name] = _Slot()
        try:
            if self._restarting:
                await self._wait_turn(child, slot)
            while not child.stop_requested.is_set():
                slot.has_run = True
                if not await self._run_until_idle(child, slot):
                    return False
                if not child.stop_requested.is_set():
                    await self._wait_turn(child, slot)
            return True
        finally:
            del self._slots[child.name]
            slot.idle.set()

    async def _run_until_idle(self, child: Supervised, slot: _Slot) -> bool:
        """Run a child until it is asked to stop, or until it has to wait for its turn in a restart.

        Returns:
            ``False`` when the supervisor gave up because of the child.
        """
        with slot.scope:
            while (error := await child.run_incarnation()) is not None:
                if slot.scope.cancel_called or self._will_be_cancelled(child):
                    logger.error("%s under %s failed on its way out", child.name, self._supervisor.name, exc_info=error)
                elif isinstance(error, Renewed):
                    self._supervisor.record_renewal(child, error)
                    if not child.stop_requested.is_set():
                        continue
                elif self._supervisor.record_failure(child, error):
                    return False
                else:
                    await self._end_younger(child)
                break
        return True

    def _will_be_cancelled(self, child: Supervised) -> bool:
        """Whether an older child has failed, and this child is about to be cancelled for that reason."""
        members = list(self._children.values())
        return self._failed is not None and members.index(self._failed) < members.index(child)

    async def _end_younger(self, child: Supervised) -> None:
        """End the children younger than a failed child, and arrange for all of them to begin again.

        Cancelled when an older child fails; the older child then does the same for more children.
        """
        self._restarting, self._failed = True, child
        self._beginning.cancel()
        members = list(self._children.values())
        for younger in reversed(members[members.index(child) + 1 :]):
            if (other := self._slots.get(younger.name)) is not None:
                other.scope.cancel()
                await other.idle.wait()
        await self._supervisor.pause(child)
        if self._failed is not child:  # an older child failed in the tick in which the backoff ended
            return
        self._failed = None
        if not self._supervisor.stop_requested.is_set():
            self._beginning = trio.CancelScope()
            self._nursery.start_soon(self._restart_in_order, self._beginning, name="restart in order")

    async def _wait_turn(self, child: Supervised, slot: _Slot) -> None:
        """Wait for the child's turn to begin, or for a request that the child stops."""
        child.state = "waiting"
        slot.go = trio.Event()
        slot.idle.set()
        async with trio.open_nursery() as nursery:

            async def hear(event: trio.Event) -> None:
                await event.wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(hear, slot.go)
            nursery.start_soon(hear, child.stop_requested)

    async def _restart_in_order(self, scope: trio.CancelScope) -> None:
        """Let the idle children begin again, the oldest first."""
        with scope:
            while (child := self._next()) is not None:
                # A child that failed as soon as it was ready has taken over before this task went on.
                if scope.cancel_called or self._supervisor.stop_requested.is_set():
                    return
                slot = self._slots[child.name]
                slot.idle, slot.scope = trio.Event(), trio.CancelScope()
                child.restarts += slot.has_run
                slot.go.set()
                if isinstance(child, Cell):
                    await child.ready.wait()  # also set when the child stops; a failure cancels this task
            self._restarting = False

    def _next(self) -> Supervised | None:
        idle = (slot is not None and slot.idle.is_set() for slot in map(self._slots.get, self._children))
        return next((child for child, is_idle in zip(self._children.values(), idle, strict=True) if is_idle), None)
