"""All connections are taken: probes are answered, slow bodies make way, honest clients do not notice."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from tests.entrypoints.server.door import App, Door, Watched, echo, forever, opened, request, until, until_end

from omni_actors.entrypoints.server import Exchange, Limits, connection
from omni_actors.entrypoints.server.acceptor import Acceptor

PROBES = {"/live"}
ONCE = request("/", None, "Connection: close")
PROBE = request("/live")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A body may be behind for 0.3 s, not 5."""
    monkeypatch.setattr(connection, "PATIENCE_S", 0.3)


def begun(size: int = 1_000_000) -> bytes:
    """A request whose body has not come."""
    return f"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {size}\r\n\r\n".encode()


async def drip(stream: trio.SocketStream, piece: bytes, seconds: float) -> None:
    """Send a piece every so many seconds, until the server has had enough."""
    try:
        while True:
            await stream.send_all(piece)
            await trio.sleep(seconds)
    except trio.BrokenResourceError:
        return


@asynccontextmanager
async def dripping(door: Door, number: int, piece: bytes = b"x", seconds: float = 1.0) -> AsyncIterator[list[Any]]:
    """So many clients that drip bodies, and have all been let in, as far as there are places."""
    streams = []
    async with trio.open_nursery() as nursery:
        for _ in range(number):
            stream = await door.connect()
            await stream.send_all(begun())
            nursery.start_soon(drip, stream, piece, seconds)
            streams.append(stream)
        yield streams
        nursery.cancel_scope.cancel()
    for stream in streams:
        await trio.aclose_forcefully(stream)


async def probe(door: Door) -> float:
    """Seconds until a probe is answered."""
    began = time.perf_counter()
    async with await door.connect() as stream:
        await stream.send_all(PROBE)
        assert (await until(stream, b"GET /live ? ", 10)).startswith(b"HTTP/1.1 200 ")
    return time.perf_counter() - began


async def test_probes_are_answered_while_64_clients_drip_bodies() -> None:
    async with opened(limits=Limits(connections=16), probes=PROBES) as door, dripping(door, 64):
        for _ in range(20):
            assert await probe(door) < 1
        assert door.value("http_accepting_paused_total", cause="connections") >= 1


@pytest.mark.usefixtures("impatient")
async def test_bodies_that_drip_make_way_and_are_told() -> None:
    """For who wants something else than a probe. The slow one is told why, the others go on."""
    async with opened(limits=Limits(connections=4), probes=PROBES) as door, dripping(door, 4) as drips:
        for _ in range(3):
            assert (await door.say(ONCE)).startswith(b"HTTP/1.1 200 ")
        await door.closed("shed")
        ends = []
        async with trio.open_nursery() as nursery:

            async def end(stream: trio.SocketStream) -> None:
                ends.append(await until_end(stream))
                nursery.cancel_scope.cancel()

            for stream in drips:
                nursery.start_soon(end, stream)
        assert ends[0].startswith(b"HTTP/1.1 408 ")
        assert b"arrived too slowly" in ends[0]


@pytest.mark.usefixtures("impatient")
async def test_an_honest_slow_upload_is_not_cut() -> None:
    """20 KB/s, and the same again in bursts, among drips that are shed one after the other."""
    async with opened(limits=Limits(connections=8), probes=PROBES) as door:
        answers = []

        async def upload(piece: int, seconds: float) -> None:
            async with await door.connect() as stream:
                await stream.send_all(begun(30_000))
                for _ in range(30_000 // piece):
                    await stream.send_all(b"x" * piece)
                    await trio.sleep(seconds)
                answers.append(await until_end(stream))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(upload, 1000, 0.05)
            nursery.start_soon(upload, 5000, 0.25)
            async with dripping(door, 6, b"x", 0.1):
                for _ in range(10):
                    assert (await door.say(ONCE)).startswith(b"HTTP/1.1 200 ")
                    await trio.sleep(0.1)
        assert [it[:12] for it in answers] == [b"HTTP/1.1 200"] * 2
        assert door.value("http_connections_closed_total", reason="shed") >= 1


@pytest.mark.usefixtures("impatient")
async def test_the_slowest_body_makes_way_first() -> None:
    async with opened(limits=Limits(connections=2), probes=PROBES) as door:
        async with dripping(door, 1, b"x" * 300, 0.1) as faster, dripping(door, 1, b"x", 0.1) as slower:
            assert (await door.say(ONCE)).startswith(b"HTTP/1.1 200 ")
            assert (await until_end(slower[0])).startswith(b"HTTP/1.1 408 ")
            assert door.value("http_connections_closed_total", reason="shed") == 1
            with trio.move_on_after(0.05) as still:
                await faster[0].receive_some()
            assert still.cancelled_caught


@pytest.mark.usefixtures("impatient")
async def test_an_unread_body_does_not_count_as_slow() -> None:
    """Nor is a handler's own time its client's."""
    read = trio.Event()

    async def app(exchange: Exchange) -> None:
        if exchange.method == "POST":
            await read.wait()
        await echo(exchange)

    async with opened(app, limits=Limits(connections=1), probes=PROBES) as door, await door.connect() as busy:
        await busy.send_all(begun(3) + b"a")
        async with await door.connect() as next_one:
            await next_one.send_all(ONCE)
            with trio.move_on_after(0.5) as still:
                await next_one.receive_some()
            assert still.cancelled_caught
            read.set()
            await busy.send_all(b"bc")
            assert (await until_end(busy)).endswith(b"POST / ? abc")
            assert (await until_end(next_one)).endswith(b"GET / ? ")


@asynccontextmanager
async def full(door: Door, watched: Watched) -> AsyncIterator[trio.SocketStream]:
    """The one place is taken by who is being answered."""
    async with await door.connect() as busy:
        await busy.send_all(request("/busy"))
        with trio.fail_after(5):
            await watched.begun.wait()
        yield busy


def busy_or_echo(watched: Watched) -> Callable[[Exchange], Any]:
    async def app(exchange: Exchange) -> None:
        await (watched(exchange) if exchange.path == "/busy" else App().http(exchange))

    return app


async def test_the_longest_waiting_is_turned_away_when_more_come() -> None:
    watched = Watched(forever)
    limits = Limits(connections=1, connections_reserved=2)
    async with opened(busy_or_echo(watched), limits=limits, probes=PROBES) as door, full(door, watched) as busy:
        waiting = []
        for _ in range(3):
            waiting.append(await door.connect())
            await waiting[-1].send_all(ONCE)
            await trio.sleep(0.02)
        turned_away = await until_end(waiting[0])
        assert turned_away.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: 1\r\n" in turned_away
        assert await probe(door) < 1
        assert (await until_end(waiting[1])).startswith(b"HTTP/1.1 503 ")
        await busy.aclose()
        assert (await until_end(waiting[2])).startswith(b"HTTP/1.1 200 ")
        await door.closed("crowded", 2)
        for stream in waiting:
            await stream.aclose()


async def test_nobody_waits_for_a_place_for_ever() -> None:
    watched = Watched(forever)
    limits = Limits(connections=1, head_s=0.2)
    async with opened(busy_or_echo(watched), limits=limits, probes=PROBES) as door, full(door, watched):
        assert (await door.say(ONCE)).startswith(b"HTTP/1.1 503 ")
        await door.closed("crowded")


async def test_who_says_nothing_does_not_keep_probes_out() -> None:
    """Nor who begins a head, lingers behind a probe, or says more than a probe needs."""
    watched = Watched(forever)
    limits = Limits(connections=1, connections_reserved=4)
    async with opened(busy_or_echo(watched), limits=limits, probes=PROBES) as door, full(door, watched):
        others = []
        for said in (b"", b"GET /li", request("/live", b"xyz")[:-1], PROBE, begun()) * 4:
            stream = await door.connect()
            await stream.send_all(said)
            others.append(stream)
        for _ in range(5):
            assert await probe(door) < 1
        for stream in others:
            await trio.aclose_forcefully(stream)
        await door.closed("crowded")


async def test_what_waits_for_a_place_is_told_of_the_end() -> None:
    watched = Watched(forever)
    async with opened(busy_or_echo(watched), limits=Limits(connections=1), probes=PROBES, grace_s=5) as door:
        async with full(door, watched), await door.connect() as waiting:
            await waiting.send_all(ONCE)
            with trio.fail_after(5):
                while not door.value("http_accepting_paused_total", cause="connections"):
                    await trio.sleep(0.002)
            await trio.sleep(0.02)
            door.stop.set()
            assert b"shutting down" in await until_end(waiting)
        with trio.fail_after(5):
            await door.over.wait()


async def test_without_reserved_connections_the_next_waits_at_the_door() -> None:
    watched = Watched(forever)
    limits = Limits(connections=1, connections_reserved=0)
    async with opened(busy_or_echo(watched), limits=limits, probes=PROBES) as door, full(door, watched) as busy:
        async with await door.connect() as next_one:
            await next_one.send_all(PROBE)
            with trio.fail_after(5):
                while not door.value("http_accepting_paused_total", cause="connections"):
                    await trio.sleep(0.002)
            assert door.value("http_connections_open") == 1
            await busy.aclose()
            await until(next_one, b"GET /live ? ")


@pytest.mark.parametrize(
    ("limits", "most", "counted"),
    [
        (Limits(), 1024, {"10.0.0.1": "10.0.0.1", "127.0.0.1": None, "::1": None}),
        (Limits(connections=40), 16, {}),
        (Limits(connections_per_client=3), 3, {"127.0.0.1": "127.0.0.1", "::1": "::/64"}),
        (
            Limits(),
            1024,
            {"2001:db8::1": "2001:db8::/64", "2001:db8::ffff:1": "2001:db8::/64", "fe80::1%eth0": "fe80::/64"},
        ),
    ],
)
def test_a_client_may_have_a_part_of_the_connections(limits: Limits, most: int, counted: dict[str, str | None]) -> None:
    door = Acceptor(SimpleNamespace(limits=limits), None)  # type: ignore[arg-type]
    assert door._most_of_one == most
    assert {host: door._client(host) for host in counted} == counted


async def test_too_many_of_one_client_are_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """Once, with what to do about it."""
    async with opened(limits=Limits(connections_per_client=1)) as door, await door.connect() as first:
        await first.send_all(request())
        await until(first, b"GET / ? ")
        for _ in range(3):
            await trio.aclose_forcefully(await door.connect())
        await door.closed("too_many", 3)
    (line,) = [it.getMessage() for it in caplog.records if "connections_per_client" in it.getMessage()]
    assert line.startswith("127.0.0.1 has 1 connections")
