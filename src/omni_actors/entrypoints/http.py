"""A request and a reply as the surfaces see them, and the exchange that carries both.

A handler makes a :class:`Reply` of a :class:`Call`, and knows nothing of what is under them: an :class:`Exchange` of
this project's own server or of another one's ASGI, directly or through Quart.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import trio

from omni_actors.protocol.errors import deadline_exceeded

T = TypeVar("T")

Headers = list[tuple[bytes, bytes]]
"""Names in lower case."""


class Exchange(Protocol):
    """One HTTP request, and its answer, as whoever answers it sees them.

    Everything is used by one task, whose scope is cancelled when the client leaves. An answer is one ``respond``, or
    ``start``, any number of ``write`` and ``finish``. One that is left unfinished ends abnormally: the connection is
    closed without the mark of an end. Writes wait for a client that does not read, with a deadline of the server's.
    """

    @property
    def method(self) -> str: ...

    @property
    def path(self) -> str:
        """Decoded, without the query."""
        ...

    @property
    def query(self) -> bytes: ...

    @property
    def headers(self) -> Headers: ...

    @property
    def client(self) -> tuple[str, int] | None:
        """Address of the other end, where it has one (on a unix socket it has not)."""
        ...

    @property
    def received(self) -> bool:
        """Whether the whole body has come: ``receive`` does not wait any more."""
        ...

    async def receive(self) -> bytes:
        """The next piece of the body; nothing at its end, however often it is asked."""
        ...

    async def respond(self, status: int, headers: Headers, body: bytes) -> None: ...

    async def start(self, status: int, headers: Headers, first: bytes = b"") -> None:
        """Begin an answer whose length is not known, with its first bytes."""
        ...

    async def write(self, data: bytes) -> None: ...

    async def finish(self, last: bytes = b"") -> None: ...


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
    peer: str | None = None
    """IP address of the other end, if it has one. Behind a proxy it is the proxy's."""
    timeout_s: float | None = None
    """The caller's whole budget by header, in seconds from ``started``."""
    route: str = "unmatched"
    status: int = 0

    @property
    def unique(self) -> str:
        """What no other request's identity has: for ids of what is made for this one."""
        return self.id[4:36]

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
    headers: Mapping[bytes, bytes]
    """Names in lower case; of several of a name the first."""
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
        return self.headers.get(b"content-type", b"").partition(b";")[0].strip().lower().decode("latin-1")


@dataclass(slots=True)
class Reply:
    """A status, a head and a body: bytes, or pieces as they come. A body may raise :class:`BrokenStream`."""

    body: bytes | AsyncGenerator[bytes, None]
    headers: Sequence[tuple[str, str]] = field(default_factory=lambda: [("content-type", "application/json")])
    status: int = 200
