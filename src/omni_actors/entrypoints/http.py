"""A request and a reply as the surfaces see them: what carries them (Quart today) is the application's business."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import trio

from omni_actors.protocol.errors import deadline_exceeded

T = TypeVar("T")


class BrokenStream(Exception):
    """Raised by a reply's body that cannot go on: the response ends abnormally, its connection is closed."""


@dataclass(slots=True)
class RequestContext:
    """What the guard knows of a request. ``label`` is the caller's ``X-Request-Id``, echoed as it came; ``id`` is ours,
    unique whatever callers send, and ends with the label so that logs can be searched by it."""

    id: str
    label: str | None
    started: float
    """Trio time at which the head arrived."""
    timeout_s: float | None = None
    """The caller's whole budget by header, in seconds from ``started``."""
    route: str = "unmatched"
    status: int = 0

    def remaining(self, timeout_s: float | None = None) -> float | None:
        """Seconds left of the budget (the smaller of header and field), ``None`` without one.

        Raises 408 when nothing is left.
        """
        budgets = [budget for budget in (self.timeout_s, timeout_s) if budget is not None]
        if not budgets:
            return None
        left = self.started + min(budgets) - trio.current_time()
        if left <= 0:
            raise deadline_exceeded()
        return left


@contextmanager
def before(context: RequestContext) -> Iterator[None]:
    """A block that ends with the caller's deadline: for work that comes before the orchestrator, which keeps it from
    then on. Raises 408."""
    left = context.remaining()
    with trio.move_on_after(math.inf if left is None else left) as scope:
        yield
    if scope.cancelled_caught:
        raise deadline_exceeded()


@dataclass(slots=True)
class Call:
    """One HTTP request. What a handler opens by :meth:`enter` stays open until its reply has been sent (or the client
    is gone), and is closed in the same task, last opened first."""

    context: RequestContext
    headers: Mapping[str, str]
    body: AsyncIterator[bytes]
    stack: AsyncExitStack

    async def enter(self, manager: AbstractAsyncContextManager[T]) -> T:
        return await self.stack.enter_async_context(manager)

    async def read(self, limit: int) -> tuple[bytes, bool]:
        """The body until it ends or is over ``limit`` bytes, and whether it has ended; :meth:`rest` gives what follows.
        The guard has bounded its whole size and the client's silence."""
        parts: list[bytes] = []
        size = 0
        async for part in self.body:
            parts.append(part)
            size += len(part)
            if size > limit:
                return b"".join(parts), False
        return b"".join(parts), True

    async def rest(self, begun: bytes) -> AsyncIterator[bytes]:
        """``begun`` and what follows it, as it comes."""
        yield begun
        async for part in self.body:
            yield part

    @property
    def content_type(self) -> str:
        """Without parameters, in lower case."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()


@dataclass(slots=True)
class Reply:
    """A status, a head and a body: bytes, or pieces as they come. A body may raise :class:`BrokenStream`."""

    body: bytes | AsyncIterator[bytes]
    headers: Sequence[tuple[str, str]] = field(default_factory=lambda: [("content-type", "application/json")])
    status: int = 200
