"""One connection: its client's leaving, its slowness, its failures, and the times it is given."""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable

import pytest
import trio
from tests.entrypoints.server.door import (
    PLAIN,
    Watched,
    forever,
    opened,
    request,
    reset,
    stream_forever,
    tick,
    until,
    until_end,
)

from omni_actors.entrypoints.server import Exchange, Limits

Work = Callable[[Exchange], Awaitable[None]]


async def read_forever(exchange: Exchange) -> None:
    while await exchange.receive():
        pass


WORKS: dict[str, Work] = {"waits": forever, "streams": stream_forever, "ticks": tick, "reads": read_forever}
BEHIND = {
    "nothing": b"",
    "an empty line": b"\r\n",
    "another request": request("/two"),
    "many requests": request("/two") * 1000,
    "a megabyte": b"x" * (1 << 20),
}


@pytest.mark.parametrize("how", ["end", "reset", "half"])
@pytest.mark.parametrize("work", WORKS)
async def test_a_client_that_leaves_is_a_cancellation_at_once(work: str, how: str) -> None:
    """Whatever its answer is at; half-closing is leaving."""
    watched = Watched(WORKS[work])
    async with opened(watched) as door, await door.connect() as stream:
        sent = request("/", b"body")
        await stream.send_all(sent[:-2] if work == "reads" else sent)
        with trio.fail_after(5):
            await watched.begun.wait()
            if work in ("streams", "ticks"):
                await stream.receive_some(100)
        left = trio.current_time()
        if how == "end":
            await stream.aclose()
        elif how == "reset":
            reset(stream)
        else:
            await stream.send_eof()
        with trio.fail_after(5):
            await watched.cancelled.wait()
        assert trio.current_time() - left < 1
        await door.closed("client_left")
        await door.settled()


@pytest.mark.parametrize("behind", BEHIND)
async def test_what_a_client_sent_ahead_does_not_hide_its_leaving(behind: str) -> None:
    watched = Watched(forever)
    async with opened(watched) as door, trio.open_nursery() as nursery:
        stream = await door.connect()
        await stream.send_all(request())
        with trio.fail_after(5):
            await watched.begun.wait()

        async def send_on() -> None:
            try:
                await stream.send_all(BEHIND[behind])
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                pass

        nursery.start_soon(send_on)
        await trio.sleep(0.05)  # so that it is there, or on its way
        reset(stream) if len(BEHIND[behind]) > 500_000 else await stream.aclose()
        with trio.fail_after(1):
            await watched.cancelled.wait()
        await door.settled()


async def test_requests_sent_ahead_wait_in_the_kernel() -> None:
    """A client that floods while it is being answered is held back, and takes no memory here."""
    async with opened(forever) as door, await door.connect() as stream:
        await stream.send_all(request())
        with trio.move_on_after(0.5):
            for _ in range(100):
                await stream.send_all(b"x" * (1 << 20))
            raise AssertionError("all of it was taken")
        assert door.value("http_connections_open") == 1


@pytest.mark.parametrize("behind", ["an empty line", "another request"])
async def test_what_comes_behind_the_last_request_does_not_cost_its_answer(behind: str) -> None:
    """A socket that is closed with unread bytes in it resets the connection, and with it an answer under way."""
    go_on = trio.Event()

    async def app(exchange: Exchange) -> None:
        await go_on.wait()
        await exchange.respond(200, PLAIN, b"done")

    watched = Watched(app)
    async with opened(watched) as door, await door.connect() as stream:
        await stream.send_all(request("/", None, "Connection: close"))
        with trio.fail_after(5):
            await watched.begun.wait()
        await stream.send_all(BEHIND[behind])
        await trio.sleep(0.05)  # so that it is there
        go_on.set()
        assert (await until_end(stream)).endswith(b"done")
        await stream.aclose()
        await door.closed("done")


async def test_a_body_that_goes_wrong_behind_its_answer_does_not_cost_that() -> None:
    async def app(exchange: Exchange) -> None:
        await exchange.respond(200, PLAIN, b"done")

    async with opened(app) as door, await door.connect() as stream:
        await stream.send_all(request("/", None, "Transfer-Encoding: chunked", method="POST"))
        await until(stream, b"done")
        await stream.send_all(b"no size\r\n" + b"x" * 500_000)
        assert await until_end(stream) == b""
        await stream.aclose()
        await door.closed("bad_request")


async def test_a_reader_that_stops_is_cut_off() -> None:
    """It sees a reset, and its handler is cancelled; the others are not held up."""
    watched = Watched(stream_forever)

    async def app(exchange: Exchange) -> None:
        if exchange.path == "/stream":
            await watched(exchange)
        else:
            await exchange.respond(200, PLAIN, b"hello")

    async with opened(app, limits=Limits(write_s=1)) as door, await door.connect() as stream:
        await stream.send_all(request("/stream"))
        with trio.fail_after(5):
            await watched.begun.wait()
            while not watched.cancelled.is_set():
                began = trio.current_time()
                assert (await door.say(request("/", None, "Connection: close"))).endswith(b"hello")
                assert trio.current_time() - began < 0.7
        await door.closed("write_stalled")
        with trio.fail_after(5):
            with pytest.raises(trio.BrokenResourceError):
                while await stream.receive_some():
                    pass


async def test_a_reader_that_is_slow_is_not() -> None:
    """What counts is that it takes something at all, not when it has all."""

    async def app(exchange: Exchange) -> None:
        await exchange.respond(200, PLAIN, bytes(8 << 20))

    async with opened(app, limits=Limits(write_s=0.5)) as door:
        with trio.socket.socket() as client:
            client.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_RCVBUF, 65536)
            await client.connect(door.address)
            await client.send(request("/", None, "Connection: close"))
            began, received = trio.current_time(), 0
            with trio.fail_after(20):
                while part := await client.recv(65536):
                    received += len(part)
                    if trio.current_time() < began + 1:
                        await trio.sleep(0.05)
        assert received > 8 << 20
        assert trio.current_time() > began + 1


@pytest.mark.parametrize("whole", [True, False])
async def test_a_write_that_is_cancelled_ends_the_connection_in_the_middle(whole: bool) -> None:
    """The application's own deadline around a write holds, and nothing follows half a piece."""
    given_up = trio.Event()

    async def app(exchange: Exchange) -> None:
        with trio.move_on_after(0.2):
            if whole:
                await exchange.respond(200, PLAIN, bytes(100 << 20))
            await exchange.start(200, PLAIN)
            while True:
                await exchange.write(bytes(65536))
        given_up.set()

    async with opened(app) as door, await door.connect() as stream:
        await stream.send_all(request() * 2)
        with trio.fail_after(2):
            await given_up.wait()
        await door.closed("unfinished")
        with pytest.raises(trio.BrokenResourceError):
            await until_end(stream)


async def test_a_handler_that_fails_is_500_and_its_own() -> None:
    async def app(exchange: Exchange) -> None:
        if exchange.path == "/group":
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.sleep_forever)
                raise RuntimeError("secret")
        if exchange.path == "/fails":
            raise RuntimeError("secret")
        if exchange.path == "/begun":
            await exchange.start(200, PLAIN, b"first")
            raise RuntimeError("secret")
        if exchange.path == "/fine":
            await exchange.respond(200, PLAIN, b"fine")

    async with opened(app) as door:
        for path in ("/group", "/fails", "/nothing"):
            answer = await door.say(request(path))
            assert answer.startswith(b"HTTP/1.1 500 ")
            assert b"secret" not in answer
        assert (await door.say(request("/begun"))).endswith(b"5\r\nfirst\r\n")
        # A body that ends with its connection would look whole: the client has to see an error.
        with pytest.raises(trio.BrokenResourceError):
            await door.say(b"GET /begun HTTP/1.0\r\n\r\n")
        assert (await door.say(request("/fine", None, "Connection: close"))).endswith(b"fine")
        await door.settled()


async def test_the_log_has_the_details_that_the_client_does_not_get(caplog: pytest.LogCaptureFixture) -> None:
    async def app(exchange: Exchange) -> None:
        raise RuntimeError("secret")

    async with opened(app) as door:
        with caplog.at_level(logging.ERROR, "omni_actors"):
            await door.say(request("/there"))
        (record,) = caplog.records
        assert "/there" in record.getMessage()
        assert record.exc_info


async def test_a_bad_chunk_ends_a_request_whose_body_is_being_read() -> None:
    watched = Watched(read_forever)
    async with opened(watched) as door, await door.connect() as stream:
        await stream.send_all(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n")
        with trio.fail_after(5):
            await watched.begun.wait()
        await stream.send_all(b"nonsense\r\n")
        assert (await until_end(stream)).startswith(b"HTTP/1.1 400 ")
        assert watched.cancelled.is_set()


async def test_the_response_to_an_unread_body_arrives() -> None:
    """It is read and thrown away behind the answer, and the connection goes on; one that takes longer is closed, and
    its client has the answer all the same."""

    async def app(exchange: Exchange) -> None:
        await exchange.respond(200, PLAIN, exchange.path.encode())

    async with opened(app, limits=Limits(linger_s=0.3)) as door:
        answer = await door.say(request("/one", bytes(5_000_000)), request("/two", None, "Connection: close"))
        assert answer.count(b"HTTP/1.1 200 ") == 2
        assert answer.endswith(b"/two")
        async with await door.connect() as stream, trio.open_nursery() as nursery:
            await stream.send_all(request("/slow", bytes(1000))[:-500])

            async def drip() -> None:
                try:
                    while True:
                        await stream.send_all(b"x")
                        await trio.sleep(0.02)
                except trio.BrokenResourceError:
                    pass

            nursery.start_soon(drip)
            assert (await until_end(stream)).endswith(b"/slow")
            nursery.cancel_scope.cancel()
        await door.settled()


async def test_times_of_a_head() -> None:
    limits = Limits(head_s=0.2, keep_alive_s=0.8)
    async with opened(limits=limits) as door:
        began = trio.current_time()
        assert await door.say() == b""  # says nothing
        assert 0.15 < trio.current_time() - began < 0.7
        await door.closed("idle")
        async with await door.connect() as stream, trio.open_nursery() as nursery:

            async def drip() -> None:
                for byte in request("/slow"):
                    await stream.send_all(bytes([byte]))
                    await trio.sleep(0.05)

            nursery.start_soon(drip)
            assert (await until(stream, b"}}")).startswith(b"HTTP/1.1 408 ")
            nursery.cancel_scope.cancel()
        await door.closed("head_timeout")
        async with await door.connect() as stream:
            for _ in range(3):  # each time anew
                await stream.send_all(request("/a"))
                await until(stream, b"/a ? ")
                await trio.sleep(0.35)
            began = trio.current_time()
            assert await until_end(stream) == b""
            assert trio.current_time() - began < 0.8
        await door.closed("idle", 2)


async def test_nothing_is_left_of_connections() -> None:
    async with opened() as door:
        await door.say(request("/", None, "Connection: close"))
        await door.settled()
        before = len(os.listdir("/proc/self/fd"))
        for at in range(200):
            stream = await door.connect()
            if at % 4:
                await stream.send_all(request()[: None if at % 4 == 1 else 10])
            if at % 3:
                await stream.aclose()
            else:
                reset(stream)
        await door.settled()
        assert len(os.listdir("/proc/self/fd")) <= before
        assert door.value("http_connections_total") == 201
