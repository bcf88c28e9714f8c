"""Calls into a trio loop of another thread: results, failures, cancellation, and the end."""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest
import trio

from omni_actors import OmniError
from omni_actors.entrypoints.offline.portal import Portal


class Service:
    """What a portal opens here: it notes who was cancelled, and that it was left."""

    def __init__(self) -> None:
        self.started = threading.Event()
        self.cancelled = threading.Event()
        self.left = threading.Event()

    async def endless(self) -> None:
        self.started.set()
        try:
            await trio.sleep_forever()
        finally:
            self.cancelled.set()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Service]:
        try:
            yield self
        finally:
            self.left.set()


def opened(service: Service) -> Portal[Service]:
    portal = Portal(service.open, "test")
    assert portal.opened.result(5) is service
    return portal


async def double(value: int) -> int:
    await trio.lowlevel.checkpoint()
    return 2 * value


async def fails() -> None:
    await trio.lowlevel.checkpoint()
    raise ZeroDivisionError


def test_results_and_failures_come_out_as_they_are() -> None:
    portal = opened(Service())
    assert portal.call(double, 2) == 4
    assert [it.result(5) for it in [portal.submit(double, value) for value in range(50)]] == list(range(0, 100, 2))
    with pytest.raises(ZeroDivisionError):
        portal.call(fails)
    assert portal.submit(double, 3).result(5) == 6
    portal.close()


def test_a_cancelled_future_cancels_its_function_while_it_runs() -> None:
    service = Service()
    portal = opened(service)
    future = portal.submit(service.endless)
    assert service.started.wait(5)
    assert future.cancel()
    assert service.cancelled.wait(5)
    assert concurrent.futures.wait([future], 5).done == {future}
    assert portal.call(double, 1) == 2
    portal.close()


def test_a_future_that_is_cancelled_at_once_never_runs_to_its_end() -> None:
    service = Service()
    portal = opened(service)
    futures = [portal.submit(service.endless) for _ in range(20)]
    assert all(future.cancel() for future in futures)
    assert concurrent.futures.wait(futures, 5).not_done == set()
    portal.close()


def test_closing_cancels_the_futures_that_are_left_and_leaves_the_context() -> None:
    service = Service()
    portal = opened(service)
    futures = [portal.submit(service.endless) for _ in range(3)]
    assert service.started.wait(5)
    portal.close()
    assert all(future.cancelled() for future in futures)
    assert concurrent.futures.wait(futures, 5).not_done == set()
    assert service.cancelled.is_set()
    assert service.left.is_set()
    with pytest.raises(OmniError) as closed:
        portal.submit(double, 1)
    assert closed.value.info.code == "closed"
    portal.close()


def test_a_call_that_waits_when_another_thread_closes_is_told_so() -> None:
    service = Service()
    portal = opened(service)

    def close_once_it_runs() -> None:
        service.started.wait(5)
        portal.close()

    closer = threading.Thread(target=close_once_it_runs)
    closer.start()
    with pytest.raises(OmniError) as closed:
        portal.call(service.endless)
    assert closed.value.info.code == "closed"
    closer.join(5)


def test_a_call_from_the_portals_own_thread_is_refused() -> None:
    portal = opened(Service())

    async def within() -> None:
        portal.call(double, 1)

    with pytest.raises(RuntimeError, match="own thread"):
        portal.call(within)
    portal.close()


def test_closing_while_the_context_is_being_opened_ends_that() -> None:
    opening, ended = threading.Event(), threading.Event()

    @asynccontextmanager
    async def slow() -> AsyncIterator[None]:
        opening.set()
        try:
            await trio.sleep_forever()
        finally:
            ended.set()
        yield

    portal = Portal(slow, "test")
    assert opening.wait(5)
    portal.close()
    assert ended.is_set()
    with pytest.raises(OmniError):
        portal.opened.result(5)


@pytest.mark.parametrize("given_up", [False, True])
def test_a_context_that_cannot_be_opened_says_why(given_up: bool) -> None:
    goes_on = threading.Event()

    @asynccontextmanager
    async def broken() -> AsyncIterator[None]:
        await trio.to_thread.run_sync(goes_on.wait, 5)
        raise ZeroDivisionError
        yield

    opening: Callable[[], AbstractAsyncContextManager[None]] = broken
    portal = Portal(opening, "test")
    if given_up:
        assert portal.opened.cancel()
    goes_on.set()
    with pytest.raises(concurrent.futures.CancelledError if given_up else ZeroDivisionError):
        portal.opened.result(5)
    portal.close()


def test_an_abandoned_context_is_left_immediately() -> None:
    service, goes_on = Service(), threading.Event()

    @asynccontextmanager
    async def slow() -> AsyncIterator[Service]:
        await trio.to_thread.run_sync(goes_on.wait, 5)
        async with service.open():
            yield service

    portal = Portal(slow, "test")
    assert portal.opened.cancel()
    goes_on.set()
    assert service.left.wait(5)
    portal.close()
