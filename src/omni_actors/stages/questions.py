"""Queries to a worker beside its requests, and their answers."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import trio

from omni_actors.protocol.codec import FrameTooLarge, frame
from omni_actors.protocol.errors import OmniError, deadline_exceeded, stage_died, too_large
from omni_actors.protocol.frames import Query, Reply


class _Pending:
    """A query that waits for its answer."""

    __slots__ = ("event", "reply")

    def __init__(self) -> None:
        self.event = trio.Event()
        self.reply: Reply | None = None


class Questions:
    """The queries to one replica, over all its incarnations. The length is the number of pending queries."""

    def __init__(self, stage: str) -> None:
        self._stage = stage
        self._ids = itertools.count(1)
        self._waiting: dict[int, _Pending] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def notify(self, what: str, args: dict[str, Any]) -> bytes:
        """Return the frame of a query without an answer (fire and forget)."""
        return frame(Query(next(self._ids), what, args))

    async def ask(self, send: Callable[[bytes], None], what: str, args: dict[str, Any], timeout_s: float) -> Any:
        """Send a query, and return the worker's answer.

        Raises the worker's typed error, ``stage_died`` when the worker dies meanwhile, ``deadline_exceeded`` after
        ``timeout_s`` seconds, and 413 for a query that is too large for a frame.
        """
        id = next(self._ids)
        pending = self._waiting[id] = _Pending()
        try:
            try:
                send(frame(Query(id, what, args)))
            except FrameTooLarge as error:
                raise too_large(f"The query is too large: {error}.") from None
            with trio.move_on_after(timeout_s):
                await pending.event.wait()
        finally:
            self._waiting.pop(id, None)
        if not pending.event.is_set():
            raise deadline_exceeded(f"Stage '{self._stage}' did not answer '{what}' in time.")
        if pending.reply is None:
            raise stage_died(self._stage)
        if pending.reply.error is not None:
            raise OmniError(pending.reply.error)
        return pending.reply.value

    def answered(self, reply: Reply) -> None:
        """Hand an answer to its asker, who may have left."""
        pending = self._waiting.get(reply.id)
        if pending is not None:
            pending.reply = reply
            pending.event.set()

    def died(self) -> None:
        """Fail all pending queries, because the worker is gone."""
        waiting, self._waiting = self._waiting, {}
        for pending in waiting.values():
            pending.event.set()
