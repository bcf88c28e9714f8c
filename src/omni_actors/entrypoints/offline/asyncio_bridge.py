"""A deployment in an asyncio program: :func:`open_omni_asyncio` and :class:`AsyncioOmni`.

The deployment runs in a trio loop in a thread of its own; calls and cancellations cross over as futures.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Coroutine, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from omni_actors.entrypoints.offline.blocking import PortalStream
from omni_actors.entrypoints.offline.calls import Batch, Call
from omni_actors.entrypoints.offline.deployment import AsyncOmni, open_omni
from omni_actors.entrypoints.offline.output import Output
from omni_actors.entrypoints.offline.portal import Portal
from omni_actors.entrypoints.offline.verbs import Batches, Verbs
from omni_actors.pipelines.deploy.overlay import Override
from omni_actors.pipelines.plan import Plan
from omni_actors.protocol.errors import OmniError
from omni_actors.protocol.request import Event

T = TypeVar("T")

NOT_ENTERED = "enter the stream first: 'async with omni.stream.chat(…) as stream:' (it is cancelled when that is left)"


class AsyncioOmni(Verbs[Coroutine[Any, Any, Output]], Batches[Coroutine[Any, Any, list[Output]]]):
    """A deployment for an asyncio program, made by :func:`open_omni_asyncio`. Its verbs are awaited.

    The verbs are those of :class:`~omni_actors.entrypoints.offline.verbs.Verbs` and ``generate``. Cancelling a task
    that awaits a verb ends the work in every worker.
    """

    def __init__(self, portal: Portal[AsyncOmni], omni: AsyncOmni) -> None:
        self._portal = portal
        self._omni = omni
        self.stream = AsyncioStreams(portal, omni)
        """The same verbs for requests whose events are received as they arrive: ``async with omni.stream.chat(…) as
        stream``."""

    @property
    def plan(self) -> Plan:
        """The plan of the deployment."""
        return self._omni.plan

    async def _ask(self, call: Call) -> Output:
        return await _crossed(self._portal.submit(self._omni._ask, call))

    async def _ask_all(self, batch: Batch) -> list[Output]:
        return await _crossed(self._portal.submit(self._omni._ask_all, batch))


class AsyncioStreams(Verbs["AsyncioStream"]):
    """``AsyncioOmni.stream``: each verb returns a block to enter, in which the request's events are received."""

    def __init__(self, portal: Portal[AsyncOmni], omni: AsyncOmni) -> None:
        self._portal = portal
        self._omni = omni

    def _ask(self, call: Call) -> AsyncioStream:
        return AsyncioStream(self._portal, PortalStream(self._omni.stream._ask(call)))


class AsyncioStream:
    """A request's events, to be iterated inside an ``async with`` block; leaving the block cancels the rest of the
    request."""

    def __init__(self, portal: Portal[AsyncOmni], inner: PortalStream) -> None:
        self._portal = portal
        self._inner = inner
        self._entered = False
        self._events: deque[Event] = deque()
        self._next: Future[list[Event]] | None = None
        """A pending receive. It continues if its waiter is cancelled, so that no event is lost."""
        self._over = False

    async def __aenter__(self) -> Self:
        if self._entered:
            raise RuntimeError("a stream can be entered only once")
        try:
            await _crossed(self._portal.submit(self._inner.enter))
        except BaseException:
            await self._leave()
            raise
        self._entered = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._over = True
        self._events.clear()
        if self._next is not None:
            self._next.cancel()
        await self._leave()

    async def _leave(self) -> None:
        try:
            leaving = self._portal.submit(self._inner.leave)
        except OmniError:  # the deployment is closed, and its requests are over with it
            return
        await _to_the_end(asyncio.wrap_future(leaving))

    def __aiter__(self) -> Self:
        if not self._entered:
            raise RuntimeError(NOT_ENTERED)
        return self

    async def __anext__(self) -> Event:
        """Return the next event; the last one is :class:`~omni_actors.protocol.request.Completed`.

        Raises:
            OmniError: The request failed.
            RuntimeError: The stream has not been entered.

        Cancellation loses no event: the next call returns it.
        """
        if not self._entered:
            raise RuntimeError(NOT_ENTERED)
        if not self._events and not self._over:
            if self._next is None:
                self._next = self._portal.submit(self._inner.receive)
            events = await asyncio.shield(asyncio.wrap_future(self._next))
            self._next = None
            self._events.extend(events)
            self._over = not events
        if not self._events:
            raise StopAsyncIteration
        return self._events.popleft()

    async def feed(self, modality: str, kind: str, meta: dict[str, Any] | None = None, *, end: bool = False) -> None:
        """Give the request more input of a modality that streams; wait while the worker has enough.

        Args:
            modality: An input whose entry is a port.
            kind: The payload's kind, as the port declares it.
            meta: The payload's metadata.
            end: Whether this is the last piece.

        Raises:
            OmniError: The request failed, or does not take such input.
            RuntimeError: The stream has not been entered.
        """
        if not self._entered:
            raise RuntimeError(NOT_ENTERED)
        await _crossed(self._portal.submit(self._inner.feed, modality, kind, meta, end))


@asynccontextmanager
async def open_omni_asyncio(
    model: str | os.PathLike[str] | Plan | None = None,
    *,
    overlay: str | os.PathLike[str] | None = None,
    overrides: Sequence[str | Override] = (),
    platform: str | None = None,
    revision: str | None = None,
    offline: bool = False,
    log_level: str = "WARNING",
) -> AsyncIterator[AsyncioOmni]:
    """Start a model's stages and give the deployment to an asyncio program when all are ready; leaving the block ends
    every process and the deployment's thread.

    >>> import asyncio
    >>> from omni_actors import Sampling, open_omni_asyncio
    >>> async def main() -> None:
    ...     async with open_omni_asyncio("stub-voice") as omni:
    ...         one, two = await asyncio.gather(omni.chat("Hello", Sampling(max_tokens=3)), omni.speak("Good morning."))
    ...         print(one.text, two.sample_rate)
    >>> asyncio.run(main())
    sea small sea 24000

    Args:
        model: As for :func:`~omni_actors.open_omni`, like the other arguments.
        overlay: Path of a deploy file.
        overrides: Settings as ``path=value``.
        platform: Name of the platform.
        revision: Branch, tag or commit of a public checkpoint.
        offline: Fetch no weights.
        log_level: Level of the workers' logs.

    Raises:
        TypeError: An argument has a wrong type.
        OmniError: The deployment cannot be resolved, or a stage cannot start.

    Cancellation ends the start, or the deployment; it waits until every process is gone.
    """
    opening = partial(
        open_omni,
        model,
        overlay=overlay,
        overrides=overrides,
        platform=platform,
        revision=revision,
        offline=offline,
        log_level=log_level,
    )
    portal: Portal[AsyncOmni] = Portal(opening, "omni-asyncio")
    try:
        yield AsyncioOmni(portal, await _crossed(portal.opened))
    finally:
        await _to_the_end(asyncio.create_task(asyncio.to_thread(portal.close)))


async def _crossed(future: Future[T]) -> T:
    """Await a future of another thread; cancellation cancels the future."""
    return await asyncio.wrap_future(future)


async def _to_the_end(work: Awaitable[Any]) -> None:
    """Await work that must not be interrupted; a cancellation is raised afterwards."""
    inner = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not inner.done():
        try:
            await asyncio.shield(inner)
        except asyncio.CancelledError as error:
            if not inner.cancelled():
                cancelled = error
        except Exception:
            break
    if cancelled is not None:
        raise cancelled
    if not inner.cancelled():
        inner.result()
