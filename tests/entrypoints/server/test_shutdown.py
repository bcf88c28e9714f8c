"""How a server ends: what each client sees, and that nothing holds it up."""

from __future__ import annotations

import pytest
import trio
from tests.entrypoints.server.door import (
    CLOSE,
    PLAIN,
    App,
    Watched,
    forever,
    frame,
    opened,
    request,
    socket_to,
    stream_forever,
    until,
    until_end,
)

from omni_actors.entrypoints.server import Exchange, Limits, WebSocket


async def test_idle_connections_close_at_once_and_no_other_is_taken() -> None:
    async with opened(grace_s=20) as door:
        async with await door.connect() as served, await door.connect() as fresh:
            await served.send_all(request())
            await until(served, b"GET / ? ")
            await trio.sleep(0.02)
            door.stop.set()
            assert await until_end(served, 1) == b""
            assert await until_end(fresh, 1) == b""
            with trio.fail_after(1):
                await door.over.wait()
        with pytest.raises(OSError):
            await door.connect()
        assert door.value("http_connections_closed_total", reason="drained") == 2


async def test_an_answer_under_way_says_that_it_is_the_last() -> None:
    go_on = trio.Event()

    async def app(exchange: Exchange) -> None:
        await go_on.wait()
        await exchange.respond(200, PLAIN, b"done")

    watched = Watched(app)
    async with opened(watched, grace_s=20) as door, await door.connect() as stream:
        await stream.send_all(request() * 2)  # the second is not taken
        with trio.fail_after(5):
            await watched.begun.wait()
        door.stop.set()
        await trio.sleep(0.05)
        assert not door.over.is_set()
        go_on.set()
        answer = await until_end(stream)
        assert answer.endswith(b"done")
        assert CLOSE in answer
        assert answer.count(b"HTTP/1.1 ") == 1
        await stream.aclose()
        with trio.fail_after(1):
            await door.over.wait()


async def test_a_request_that_comes_after_is_503() -> None:
    """Its head was under way when the drain began."""
    async with opened(grace_s=20) as door, await door.connect() as stream:
        await stream.send_all(request()[:10])
        await trio.sleep(0.05)
        door.stop.set()
        await trio.sleep(0.05)
        await stream.send_all(request()[10:])
        answer = await until_end(stream)
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert CLOSE in answer.lower()


@pytest.mark.parametrize("more", ["Content-Length: 9", "Expect: 100-continue\r\nContent-Length: 9"])
async def test_a_body_that_still_comes_is_not_waited_for(more: str) -> None:
    """Its request is one that comes after: 503. One that has come wholly is answered."""
    begun, go_on = trio.Event(), trio.Event()

    async def app(exchange: Exchange) -> None:
        begun.set()
        while await exchange.receive():
            pass
        await go_on.wait()
        await exchange.respond(200, PLAIN, b"done")

    async with opened(app, grace_s=20) as door, await door.connect() as late, await door.connect() as whole:
        await late.send_all(request("/", None, more, method="POST") + (b"" if "Expect" in more else b"part"))
        with trio.fail_after(5):
            await begun.wait()
        begun = trio.Event()
        await whole.send_all(request("/", b"whole"))
        with trio.fail_after(5):
            await begun.wait()
        if "Expect" in more:
            await until(late, b"100 Continue\r\n\r\n")
        await trio.sleep(0.02)
        door.stop.set()
        assert (await until_end(late, 1)).startswith(b"HTTP/1.1 503 ")
        await late.aclose()
        await door.closed("drained")
        go_on.set()
        assert (await until_end(whole)).endswith(b"done")


async def test_a_head_that_does_not_go_on_is_not_waited_for() -> None:
    async with opened(grace_s=20) as door, await door.connect() as first, await door.connect() as second:
        await second.send_all(request())
        await until(second, b"GET / ? ")
        for stream in (first, second):
            await stream.send_all(request()[:10])
        await trio.sleep(0.05)
        door.stop.set()
        for stream in (first, second):
            assert (await until_end(stream, 1)).startswith(b"HTTP/1.1 503 ")
            await stream.aclose()
        with trio.fail_after(3):
            await door.over.wait()
        assert door.value("http_connections_closed_total", reason="drained") == 2


BEHIND_AN_ANSWER = {
    "a body that does not come": request("/", b"body")[:-1],
    "no end of what is no HTTP": b"nonsense\r\n\r\n",
    "a body that waits for a word": request("/", None, "Expect: 100-continue", "Content-Length: 5"),
    "no end": request("/", None, "Connection: close") + b"more",
}


async def test_what_is_waited_for_behind_an_answer_does_not_hold_up_the_end() -> None:
    async def app(exchange: Exchange) -> None:
        await exchange.respond(200, PLAIN, b"done")

    async with opened(app, grace_s=20, limits=Limits(linger_s=10)) as door:
        streams = [await door.connect() for _ in BEHIND_AN_ANSWER]
        for stream, said in zip(streams, BEHIND_AN_ANSWER.values(), strict=True):
            await stream.send_all(said)
            with trio.fail_after(5):
                assert (await stream.receive_some()).startswith(b"HTTP/1.1 ")
        door.stop.set()
        with trio.fail_after(3):
            await door.over.wait()
        for stream in streams:
            await stream.aclose()


async def test_a_busy_socket_ends_first_and_then_goes_away() -> None:
    async def handler(socket: WebSocket) -> None:
        await socket.accept()
        while True:
            said = await socket.receive()
            with socket.busy():
                await go_on.wait()
                await socket.send(said)

    go_on = trio.Event()
    limits = Limits(linger_s=0.1)
    async with (
        opened(websocket=handler, grace_s=20, limits=limits) as door,
        socket_to(door) as client,
        socket_to(door) as idle,
    ):
        await client.send(frame(1, b"work"))
        await trio.sleep(0.05)
        door.stop.set()
        assert await idle.code() == 1001
        await idle.send(frame(8, b"\x03\xe9"))
        go_on.set()
        assert await client.read() == (1, b"work")
        assert await client.code() == 1001
        await client.send(frame(8, b"\x03\xe9"))
        with trio.fail_after(2):
            await door.over.wait()


async def stubborn(exchange: Exchange) -> None:
    """Works on, whatever one asks of it, for a while after it is cancelled."""
    try:
        await trio.sleep_forever()
    finally:
        with trio.CancelScope(shield=True):
            await trio.sleep(0.3)


async def test_with_everything_open_at_once_it_ends_in_time() -> None:
    """An idle socket, a running request, stalled readers, a slow body, a slow head; what can be told is told."""
    works = {"/forever": forever, "/stream": stream_forever, "/stubborn": stubborn}

    async def app(exchange: Exchange) -> None:
        if exchange.path == "/body":
            while await exchange.receive():
                pass
        await works[exchange.path](exchange)

    async def push(socket: WebSocket) -> None:
        await socket.accept()
        while True:
            await socket.send(bytes(65536))

    async def chosen(socket: WebSocket) -> None:
        await (push(socket) if socket.query == b"push" else App().websocket(socket))

    async with opened(App(app, chosen), grace_s=0.5) as door:
        async with socket_to(door) as idle, trio.open_nursery() as nursery:
            streams = {
                name: await door.connect() for name in ("forever", "stream", "stubborn", "body", "head", "fresh")
            }
            for name in works:
                await streams[name[1:]].send_all(request(name))
            await streams["body"].send_all(request("/body", b"body")[:-1])
            await streams["head"].send_all(request()[:-1])
            pushed = await door.connect()
            await pushed.send_all(request("/s?push", None, *_UPGRADE))
            await trio.sleep(0.1)
            began = trio.current_time()
            door.stop.set()

            async def code_of(expected: int) -> None:
                assert await idle.code() == expected

            nursery.start_soon(code_of, 1001)
            with trio.fail_after(2.5):
                await door.over.wait()
            assert trio.current_time() - began < 0.5 + 0.3 + 1
            for name in ("forever", "stubborn", "body"):
                assert (await until_end(streams[name])).startswith(b"HTTP/1.1 503 "), name
            assert await until_end(streams["fresh"]) == b""
            for one in (*streams.values(), pushed):
                await one.aclose()
        assert door.value("http_connections_open") == 0


_UPGRADE = (
    "Connection: Upgrade",
    "Upgrade: websocket",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
)


async def test_a_reader_that_stopped_does_not_hold_up_the_end() -> None:
    watched = Watched(stream_forever)
    async with opened(watched, grace_s=0.3, limits=Limits(write_s=60)) as door, await door.connect() as stream:
        await stream.send_all(request())
        with trio.fail_after(5):
            await watched.begun.wait()
        await trio.sleep(0.1)
        began = trio.current_time()
        door.stop.set()
        with trio.fail_after(2):
            await door.over.wait()
        assert 0.25 < trio.current_time() - began < 1.5
        with pytest.raises(trio.BrokenResourceError):
            await until_end(stream)
