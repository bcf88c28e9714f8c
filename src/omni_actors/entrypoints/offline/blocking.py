"""A deployment in a program that blocks: :class:`Omni`."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from functools import partial
from types import TracebackType
from typing import Any, Self

import trio

from omni_actors.entrypoints.offline.calls import Batch, Call
from omni_actors.entrypoints.offline.deployment import AsyncOmni, open_omni
from omni_actors.entrypoints.offline.output import Output
from omni_actors.entrypoints.offline.portal import Portal
from omni_actors.entrypoints.offline.verbs import Batches, Verbs
from omni_actors.orchestrator import RequestStream
from omni_actors.pipelines.deploy.overlay import Override
from omni_actors.pipelines.plan import Plan
from omni_actors.protocol.errors import OmniError
from omni_actors.protocol.request import Event, Request

NOT_ENTERED = "enter the stream first: 'with omni.stream.chat(…) as stream:' (it is cancelled when the block is left)"


class Omni(Verbs[Output], Batches[list[Output]]):
    """A deployment for code that blocks. Use it as a context manager, or call :meth:`close`.

    >>> from omni_actors import Omni, Sampling
    >>> with Omni("stub-voice") as omni:
    ...     print(omni.chat("Hello", Sampling(max_tokens=3)).text)
    ...     print([it.text for it in omni.generate(["One", "Two"], Sampling(max_tokens=2))])
    ...     spoken = omni.submit.speak("Hi there.", deadline_s=30)
    ...     with omni.stream.chat("Hello", Sampling(max_tokens=2)) as stream:
    ...         for event in stream:
    ...             print(type(event).__name__)
    ...     print(len(spoken.result().wav()), "bytes")
    sea small sea
    ['and song', 'quiet its']
    TextDelta
    TextDelta
    Completed
    4844 bytes

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

    The deployment owns one thread that runs a trio loop; the worker processes end with the thread. Methods may be
    called from any thread, several at once. Ctrl-C during a call cancels the call.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | Plan | None = None,
        *,
        overlay: str | os.PathLike[str] | None = None,
        overrides: Sequence[str | Override] = (),
        platform: str | None = None,
        revision: str | None = None,
        offline: bool = False,
        log_level: str = "WARNING",
    ) -> None:
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
        self._portal: Portal[AsyncOmni] = Portal(opening, "omni")
        try:
            self._omni = self._portal.opened.result()
        except BaseException:  # Ctrl-C while the stages load, or a failure
            self._portal.close()
            raise
        self.submit = Futures(self._portal, self._omni)
        """The same verbs for requests that run beside the caller: each returns a future at once."""
        self.stream = BlockingStreams(self._portal, self._omni)
        """The same verbs for requests whose events are received as they arrive: ``with
        omni.stream.chat(…) as stream``."""

    @property
    def plan(self) -> Plan:
        """The plan of the deployment."""
        return self._omni.plan

    def _ask(self, call: Call) -> Output:
        return self._portal.call(self._omni._ask, call)

    def _ask_all(self, batch: Batch) -> list[Output]:
        return self._portal.call(self._omni._ask_all, batch)

    def close(self) -> None:
        """Cancel all running requests, end every process and the thread. Idempotent; blocks until all have ended."""
        self._portal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class Futures(Verbs[Future[Output]]):
    """``Omni.submit``: each verb returns a :class:`concurrent.futures.Future` of the output at once.

    ``cancel()`` of such a future succeeds until its output is there, and ends the work in every worker. (As with
    :func:`asyncio.run_coroutine_threadsafe`, ``running()`` is therefore false meanwhile.)
    """

    def __init__(self, portal: Portal[AsyncOmni], omni: AsyncOmni) -> None:
        self._portal = portal
        self._omni = omni

    def __call__(self, request: Request) -> Future[Output]:
        """Make a request that was put together by hand; the same as :meth:`run`."""
        return self.run(request)

    def _ask(self, call: Call) -> Future[Output]:
        return self._portal.submit(self._omni._ask, call)


class BlockingStreams(Verbs["BlockingStream"]):
    """``Omni.stream``: each verb returns a block to enter, in which the request's events are received."""

    def __init__(self, portal: Portal[AsyncOmni], omni: AsyncOmni) -> None:
        self._portal = portal
        self._omni = omni

    def _ask(self, call: Call) -> BlockingStream:
        return BlockingStream(self._portal, PortalStream(self._omni.stream._ask(call)))


class PortalStream:
    """The part of a stream in the portal's loop. Its methods are called there, one at a time."""

    def __init__(self, opening: AbstractAsyncContextManager[RequestStream]) -> None:
        self._opening = opening
        self._stream: RequestStream | None = None
        self._settled = trio.Event()
        """Set when entering has succeeded or failed."""

    async def enter(self) -> None:
        """Wait for admission. A cancelled call may have succeeded all the same: call :meth:`leave` afterwards in any
        case."""
        try:
            self._stream = await self._opening.__aenter__()
        finally:
            self._settled.set()

    async def receive(self) -> list[Event]:
        """Wait for the next event, and return it with all further events that are there already; an empty list marks
        the end."""
        assert self._stream is not None
        try:
            events = [await self._stream.receive()]
        except trio.EndOfChannel:
            return []
        with trio.CancelScope(shield=True):  # what has been received is not lost to a cancellation
            while self._stream.waiting:
                try:
                    events.append(await self._stream.receive())
                except trio.EndOfChannel:  # the block was left in the meantime
                    break
        return events

    async def feed(self, modality: str, kind: str, meta: dict[str, Any] | None, end: bool) -> None:
        """Give the request more input: see :meth:`RequestStream.feed`."""
        assert self._stream is not None
        await self._stream.feed(modality, kind, meta, end=end)

    async def leave(self) -> None:
        """End the request, if it was admitted and has not ended."""
        await self._settled.wait()
        if self._stream is not None:
            await self._opening.__aexit__(None, None, None)


class BlockingStream:
    """A request's events, to be iterated inside a ``with`` block; leaving the block cancels the rest of the request."""

    def __init__(self, portal: Portal[AsyncOmni], inner: PortalStream) -> None:
        self._portal = portal
        self._inner = inner
        self._entered = False
        self._events: deque[Event] = deque()
        self._over = False

    def __enter__(self) -> Self:
        if self._entered:
            raise RuntimeError("a stream can be entered only once")
        try:
            self._portal.call(self._inner.enter)
        except BaseException:
            self._leave()
            raise
        self._entered = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._over = True
        self._events.clear()
        self._leave()

    def _leave(self) -> None:
        try:
            self._portal.call(self._inner.leave)
        except OmniError:
            if not self._portal.closed:  # then its request is over with everything
                raise

    def __iter__(self) -> Iterator[Event]:
        if not self._entered:
            raise RuntimeError(NOT_ENTERED)
        return self

    def __next__(self) -> Event:
        """Return the next event; the last one is :class:`~omni_actors.protocol.request.Completed`.

        Raises:
            OmniError: The request failed.
            RuntimeError: The stream has not been entered.
        """
        if not self._entered:
            raise RuntimeError(NOT_ENTERED)
        if not self._events and not self._over:
            self._events.extend(self._portal.call(self._inner.receive))
            self._over = not self._events
        if not self._events:
            raise StopIteration
        return self._events.popleft()

    def feed(self, modality: str, kind: str, meta: dict[str, Any] | None = None, *, end: bool = False) -> None:
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
        self._portal.call(self._inner.feed, modality, kind, meta, end)
