"""The strategy ``rest_for_one``: a child that fails is restarted together with those that were started after it."""

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
    stop_wished: trio.Event

    def renew(self, child: Supervised, wish: Renewed) -> None: ...

    def give_up(self, child: Supervised, error: Exception) -> bool: ...

    async def pause(self, child: Supervised) -> None: ...


class _Slot:
    """The place of one child in the order. Its life runs within ``scope``; ``at_rest`` is set while no life runs, and
    ``go`` lets the next one begin."""

    def __init__(self) -> None:
        self.scope = trio.CancelScope()
        self.at_rest = trio.Event()
        self.go = trio.Event()
        self.lived = False


class RestForOne:
    """Runs the children of one life of a supervisor in the order of their start.

    When a child fails, the children after it are cancelled one by one, the last one first, each when the one before has
    torn down. After the backoff all of them begin again in the order of their start, each when the setup of the one
    before has returned. A child that is started meanwhile begins after them. A failure of an older child in the
    meantime takes over: the restart begins anew from that child. What fails while it is cancelled counts as no failure.
    """

    def __init__(self, supervisor: Owner, children: Mapping[str, Supervised], nursery: trio.Nursery) -> None:
        self._supervisor = supervisor
        self._children = children
        self._nursery = nursery
        self._slots: dict[str, _Slot] = {}
        self._restarting = False
        self._failed: Supervised | None = None
        """The child whose failure ends those after it at the moment."""
        self._beginning = trio.CancelScope()
        """Cancels the task that lets children begin again, while there is one."""

    async def keep(self, child: Supervised) -> bool:
        """Run a child's lives, one after the other. Returns whether it was asked to stop; otherwise the supervisor has
        given up."""
        slot = self._slots[child.name] = _Slot()
        try:
            if self._restarting:
                await self._rest(child, slot)
            while not child.stop_wished.is_set():
                slot.lived = True
                if not await self._live(child, slot):
                    return False
                if not child.stop_wished.is_set():
                    await self._rest(child, slot)
            return True
        finally:
            del self._slots[child.name]
            slot.at_rest.set()

    async def _live(self, child: Supervised, slot: _Slot) -> bool:
        """Lives of a child until it is asked to stop, or until it has to wait for its turn in a restart. Returns
        ``False`` when the supervisor gives up over it."""
        with slot.scope:
            while (error := await child.live()) is not None:
                if slot.scope.cancel_called or self._is_ended_for_another(child):
                    logger.error("%s under %s failed on its way out", child.name, self._supervisor.name, exc_info=error)
                elif isinstance(error, Renewed):
                    self._supervisor.renew(child, error)
                    if not child.stop_wished.is_set():
                        continue
                elif self._supervisor.give_up(child, error):
                    return False
                else:
                    await self._fall(child)
                break
        return True

    def _is_ended_for_another(self, child: Supervised) -> bool:
        """Whether an older child has failed, and this one is only not yet cancelled for it."""
        members = list(self._children.values())
        return self._failed is not None and members.index(self._failed) < members.index(child)

    async def _fall(self, child: Supervised) -> None:
        """A child failed: end those after it, and arrange for all of them to begin again. Cancelled when an older one
        fails, which then does the same for more children."""
        self._restarting, self._failed = True, child
        self._beginning.cancel()
        members = list(self._children.values())
        for younger in reversed(members[members.index(child) + 1 :]):
            if (other := self._slots.get(younger.name)) is not None:
                other.scope.cancel()
                await other.at_rest.wait()
        await self._supervisor.pause(child)
        if self._failed is not child:  # the backoff was over in the same tick in which an older one failed
            return
        self._failed = None
        if not self._supervisor.stop_wished.is_set():
            self._beginning = trio.CancelScope()
            self._nursery.start_soon(self._begin, self._beginning, name="restart in order")

    async def _rest(self, child: Supervised, slot: _Slot) -> None:
        """Wait for the child's turn, or for the wish that it stops."""
        child.state = "waiting"
        slot.go = trio.Event()
        slot.at_rest.set()
        async with trio.open_nursery() as nursery:

            async def hear(event: trio.Event) -> None:
                await event.wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(hear, slot.go)
            nursery.start_soon(hear, child.stop_wished)

    async def _begin(self, scope: trio.CancelScope) -> None:
        """Let the children that rest begin again, the oldest first."""
        with scope:
            while (child := self._next()) is not None:
                # A child that failed as soon as it was ready has taken over before this task went on.
                if scope.cancel_called or self._supervisor.stop_wished.is_set():
                    return
                slot = self._slots[child.name]
                slot.at_rest, slot.scope = trio.Event(), trio.CancelScope()
                child.restarts += slot.lived
                slot.go.set()
                if isinstance(child, Cell):
                    await child.ready.wait()  # also set when it stops; a failure cancels this task
            self._restarting = False

    def _next(self) -> Supervised | None:
        resting = (slot is not None and slot.at_rest.is_set() for slot in map(self._slots.get, self._children))
        return next((child for child, rests in zip(self._children.values(), resting, strict=True) if rests), None)
