"""A thread that runs a trio loop, with calls into the loop from other threads."""

from __future__ import annotations

import logging
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError, Future
from contextlib import AbstractAsyncContextManager
from typing import Any, Generic, TypeVar

import trio

from omni_actors.actors.background import background
from omni_actors.protocol.errors import OmniError, invalid_request

T = TypeVar("T")
V = TypeVar("V")

log = logging.getLogger(__name__)


class Portal(Generic[T]):
    """Opens an async context in a trio loop in a thread of its own, and runs functions there until it is closed.

    ``opening`` makes the context; :attr:`opened` is the future of the context's value. All methods may be called from
    any thread but the portal's own.
    """

    def __init__(self, opening: Callable[[], AbstractAsyncContextManager[T]], name: str) -> None:
        self.opened: Future[T] = Future()
        self._opening = opening
        self._lock = threading.Lock()
        self._pending: set[Future[Any]] = set()
        self._closing = False
        self._is_open = False
        self._token: trio.lowlevel.TrioToken | None = None
        self._all = trio.CancelScope()
        """The scope of everything, the opening included."""
        self._tasks: trio.Nursery
        self._stop: trio.Event
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def closed(self) -> bool:
        """Whether nothing can be submitted any more."""
        return self._closing or not self._thread.is_alive()

    def submit(self, function: Callable[..., Awaitable[V]], *args: Any) -> Future[V]:
        """Run an async function in the loop and return its future.

        Cancelling the future cancels the function, even while it runs. Closing the portal cancels all remaining
        futures.

        Raises:
            OmniError: The portal is closed (status 400).
        """
        future: Future[V] = Future()
        scope = trio.CancelScope()

        def ended(ended: Future[V]) -> None:
            if ended.cancelled():
                self._soon(scope.cancel)

        future.add_done_callback(ended)
        with self._lock:
            if self.closed or not self._soon(self._start, future, scope, function, args):
                raise _closed()
            self._pending.add(future)
        return future

    def call(self, function: Callable[..., Awaitable[V]], *args: Any) -> V:
        """Run an async function in the loop and wait for its result. Ctrl-C during the wait cancels the function."""
        if threading.current_thread() is self._thread:
            raise RuntimeError("this is the deployment's own thread: a call that waits would wait for itself")
        future = self.submit(function, *args)
        try:
            return future.result()
        except CancelledError:
            raise _closed() from None
        except BaseException:
            future.cancel()  # no effect where it is what the function raised
            raise

    def close(self) -> None:
        """Cancel all running functions, leave the context, and end the thread. Idempotent; waits for the end. A context
        that is still being opened is cancelled."""
        with self._lock:
            self._closing = True
        self._soon(self._end)
        self._thread.join()

    def _end(self) -> None:
        if self._is_open:
            self._stop.set()
        else:
            self._all.cancel()

    def _soon(self, function: Callable[..., object], *args: Any) -> bool:
        """Schedule a function in the loop; return ``False`` if the loop has ended."""
        if self._token is None:
            return False
        try:
            self._token.run_sync_soon(function, *args)
        except trio.RunFinishedError:
            return False
        return True

    # ---- in the portal's thread

    def _run(self) -> None:
        try:
            trio.run(self._main)
        except BaseException as error:
            if self._is_open:
                log.error("the deployment ended by itself", exc_info=error)
            elif self._wanted():
                self.opened.set_exception(error)
        else:
            if not self._is_open and self._wanted():
                self.opened.set_exception(_closed())
        finally:
            with self._lock:
                self._closing = True
                left, self._pending = self._pending, set()
            for future in left:
                _cancelled(future)

    async def _main(self) -> None:
        with self._lock:
            self._token = trio.lowlevel.current_trio_token()
            closing = self._closing
        self._stop = trio.Event()
        with self._all:
            if closing:
                return
            async with self._opening() as it, background() as self._tasks:
                if not self._wanted():
                    return
                self._is_open = True
                self.opened.set_result(it)
                await self._stop.wait()

    def _wanted(self) -> bool:
        """Return whether anybody still waits for :attr:`opened`, which gets its result or exception now."""
        return not self.opened.cancelled() and self.opened.set_running_or_notify_cancel()

    def _start(
        self, future: Future[V], scope: trio.CancelScope, function: Callable[..., Awaitable[V]], args: Any
    ) -> None:
        if self._stop.is_set():
            self._settled(future)
            _cancelled(future)
        else:
            self._tasks.start_soon(self._task, future, scope, function, args)

    async def _task(
        self, future: Future[V], scope: trio.CancelScope, function: Callable[..., Awaitable[V]], args: Any
    ) -> None:
        result: list[V] = []
        failure: Exception | None = None
        try:
            with scope:
                result.append(await function(*args))
        except Exception as error:  # the caller's, not this nursery's
            failure = error
        finally:  # a portal that is closed comes by here too, cancelled
            self._settled(future)
            if not result and failure is None:
                _cancelled(future)
        if not result and failure is None:
            return
        if future.set_running_or_notify_cancel():
            if failure is not None:
                future.set_exception(failure)
            else:
                future.set_result(result[0])

    def _settled(self, future: Future[Any]) -> None:
        with self._lock:
            self._pending.discard(future)


def _cancelled(future: Future[Any]) -> None:
    """Cancel a future and notify its waiters."""
    future.cancel()
    future.set_running_or_notify_cancel()


def _closed() -> OmniError:
    return invalid_request("This Omni is closed.", None, "closed")
