"""Requests and replies of API handlers, and the exchange that carries both.

A handler turns a :class:`Call` into a :class:`Reply`. Handlers do not depend on the server underneath: the
:class:`HttpExchange` may be this project's own or an adapter for ASGI, and may be reached directly or through Quart.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

import trio

from omni_actors.protocol.errors import deadline_exceeded

T = TypeVar("T")

Headers = list[tuple[bytes, bytes]]
"""Header names, in lower case, and values."""


class HttpExchange(Protocol):
    """One HTTP request and its response, as the application sees them.

    One task uses the exchange; its scope is cancelled when the client leaves. A response is one ``respond``, or
    ``start``, any number of ``write``, and ``finish``. An unfinished response ends abnormally: the connection is closed
    without the mark of an end. Writes wait for a client that does not read, up to the server's deadline.
    """

    @property
    def method(self) -> str: ...

    @property
    def path(self) -> str:
        """The path, percent-decoded, without the query."""
        ...

    @property
    def query(self) -> bytes: ...

    @property
    def target(self) -> bytes:
        """The request target as the client wrote it."""
        ...

    @property
    def http_version(self) -> str: ...

    @property
    def scheme(self) -> str: ...

    @property
    def headers(self) -> Headers: ...

    @property
    def client(self) -> tuple[str, int] | None:
        """Address of the client; ``None`` over a unix socket."""
        ...

    @property
    def user(self) -> int | None:
        """User id of the client, over a unix socket, as the kernel knows it."""
        ...

    @property
    def server(self) -> tuple[str, int | None]: ...

    @property
    def started(self) -> bool:
        """Whether the response has begun."""
        ...

    @property
    def finished(self) -> bool:
        """Whether the response has ended."""
        ...

    @property
    def received(self) -> bool:
        """Whether the whole body has arrived: ``receive`` returns the rest without waiting."""
        ...

    async def receive(self) -> bytes:
        """Return the next piece of the body; ``b""`` at its end, however often it is called."""
        ...

    def respond(self, status: int, headers: Headers, body: bytes) -> Awaitable[None]: ...

    async def start(self, status: int, headers: Headers, first: bytes = b"") -> None:
        """Begin a response of unknown length, with its first bytes."""
        ...

    async def write(self, data: bytes) -> None: ...

    def write_now(self, data: bytes) -> bool:
        """Write without waiting, from any task, while no task is in :meth:`write`. Returns ``False``, with nothing
        written, if writing would have to wait."""
        ...

    async def finish(self, last: bytes = b"") -> None: ...


class RequestBody(Protocol):
    """The body of a request; iterating gives its pieces."""

    @property
    def received(self) -> bool: ...

    async def receive(self) -> bytes: ...

    def __aiter__(self) -> AsyncIterator[bytes]: ...

    async def __anext__(self) -> bytes: ...


@dataclass(slots=True)
class RequestContext:
    """The facts that the middleware knows of a request.

    ``label`` is the caller's ``X-Request-Id``, echoed unchanged. ``id`` is the server's own, unique whatever callers
    send; it ends with the label, so that logs can be searched by the label.
    """

    id: str
    label: str | None
    started: float
    """Trio time at which the head arrived."""
    user: int | None = None
    """User id of the client over a unix socket, as the kernel knows it. Behind a proxy it is the proxy's."""
    http_version: str = ""
    """HTTP version of the client, or of the proxy in front."""
    timeout_s: float = math.inf
    """The whole budget in seconds from ``started``: from the caller's header, or the deployment's."""
    priority: int | None = None
    """Priority from the header ``X-Request-Priority``."""
    tenant: str = ""
    """Name of the API key under which limits are counted, which reveals nothing of the key; empty if
    no key is needed."""
    route: str = "unmatched"
    status: int = 0

    @property
    def unique(self) -> str:
        """The part of ``id`` that no other request has, for ids of the request's results."""
        return self.id[4:36]

    def remaining(self, timeout_s: float | None = None) -> float:
        """Return the seconds left of the budget: the smallest of field, header and deployment. Raises 408 when nothing
        is left."""
        budget = self.timeout_s if timeout_s is None else min(self.timeout_s, timeout_s)
        left = self.started + budget - trio.current_time()
        if left <= 0:
            raise deadline_exceeded()
        return left

    def combined_priority(self, priority: int | None) -> int:
        """Return the priority from field and header: the less urgent of the two, so that a proxy can bound it."""
        if self.priority is None:
            return priority or 0
        return self.priority if priority is None else max(self.priority, priority)


@contextmanager
def until_deadline(context: RequestContext) -> Iterator[Callable[[float], None]]:
    """Return a block that ends with the request's deadline, for work before the orchestrator (which keeps the deadline
    afterwards).

    The block gets a function to call with the budget in seconds that the body names, once that is known. Raises 408.
    """
    with trio.move_on_after(context.remaining()) as scope:

        def bound(timeout_s: float) -> None:
            scope.deadline = min(scope.deadline, context.started + timeout_s)

        yield bound
    if scope.cancelled_caught:
        raise deadline_exceeded()


class Opened:
    """The resources that a call has opened: closed when the block is left, in the same task, last opened first.

    Does the work of :class:`contextlib.AsyncExitStack`, at a fifth of its cost for a single resource, which is the
    usual case.
    """

    __slots__ = ("_managers",)

    def __init__(self) -> None:
        self._managers: list[AbstractAsyncContextManager[Any]] = []

    async def enter(self, manager: AbstractAsyncContextManager[T]) -> T:
        entered = await manager.__aenter__()
        self._managers.append(manager)
        return entered

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        managers = self._managers
        if not managers:
            return None
        if len(managers) == 1:
            return await managers[0].__aexit__(kind, error, traceback)
        stack = AsyncExitStack()
        for manager in managers:
            stack.push_async_exit(manager)
        return await stack.__aexit__(kind, error, traceback)


@dataclass(slots=True)
class Call:
    """One HTTP request. Resources that a handler opens by :meth:`enter` stay open until its reply has been sent or the
    client is gone; they are closed in the same task, last opened first."""

    context: RequestContext
    headers: Mapping[bytes, bytes]
    """Header values by name in lower case; of repeated headers the first value."""
    body: RequestBody
    opened: Opened
    write_now: Callable[[bytes], bool]
    """Writes a piece of the reply's body from another task, like :meth:`HttpExchange.write_now`, while the handler's
    task waits for the body's next piece."""

    def enter(self, manager: AbstractAsyncContextManager[T]) -> Awaitable[T]:
        return self.opened.enter(manager)

    async def read(self, limit: int) -> tuple[bytes, bool]:
        """Read the body until its end or beyond ``limit`` bytes; return the bytes, and whether the body has ended.
        :meth:`rest` gives the following bytes. The middleware bounds the whole size and the client's pauses."""
        if self.body.received:
            data = await self.body.receive()
            return data, len(data) <= limit
        whole = bytearray()  # a list of parts of two bytes each would take 30 × the memory
        async for part in self.body:
            whole += part
            if len(whole) > limit:
                return bytes(whole), False
        return bytes(whole), True

    async def rest(self, begun: bytes) -> AsyncIterator[bytes]:
        """Yield ``begun`` and the following pieces as they arrive."""
        yield begun
        async for part in self.body:
            yield part

    @property
    def content_type(self) -> str:
        """The content type without parameters, in lower case."""
        return self.headers.get(b"content-type", b"").partition(b";")[0].strip().lower().decode("latin-1")


JSON = (("content-type", "application/json"),)


@dataclass(slots=True)
class Reply:
    """A status, a head and a body: bytes, or pieces as they are produced. If the body raises, the response ends
    abnormally."""

    body: bytes | AsyncGenerator[bytes, None]
    headers: Sequence[tuple[str, str]] = JSON
    status: int = 200
    events: bool = False
    """Whether the pieces are server-sent events: then a failure is sent as a last event."""


Handler = Callable[..., Awaitable[Reply]]
"""An API handler: takes the :class:`Services`, a :class:`Call`, and the placeholders of its path by name."""
