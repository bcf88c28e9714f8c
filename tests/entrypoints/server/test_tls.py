"""TLS: what it carries, what a handshake gets, and who speaks something else."""

from __future__ import annotations

import contextlib
import json
import ssl
from pathlib import Path

import pytest
import trio
from tests.entrypoints.server.door import (
    CLOSE,
    UPGRADE,
    App,
    Door,
    Watched,
    forever,
    opened,
    request,
    stream_forever,
    until,
    until_end,
)
from websockets.exceptions import ConnectionClosed
from websockets.trio.client import connect as websocket_to

from omni_actors.entrypoints.server import Exchange, Limits
from omni_actors.entrypoints.server.listeners import tls_context


async def secure(door: Door, certificate: Path, *, strict: bool = False) -> trio.SSLStream[trio.SocketStream]:
    """A connection, whose handshake comes with the first use. ``strict``: an end that TLS does not say is an error."""
    trust = ssl.create_default_context(cafile=str(certificate))
    return trio.SSLStream(await door.connect(), trust, server_hostname="localhost", https_compatible=not strict)


async def test_tls(certificate: Path) -> None:
    watched = Watched(stream_forever)

    async def app(exchange: object) -> None:
        await (watched(exchange) if exchange.path == "/stream" else App().http(exchange))  # type: ignore[attr-defined, arg-type]

    limits = Limits(handshake_s=1.0, write_s=0.4)
    async with opened(app, tls=tls_context(str(certificate), None), limits=limits) as door:
        assert door.url.startswith("https://")
        silent = [await door.connect() for _ in range(4)]
        async with await secure(door, certificate) as stream:
            await stream.send_all(b"nonsense\r\n\r\n")
            assert (await until_end(stream)).startswith(b"HTTP/1.1 400 ")
        async with await secure(door, certificate) as stream:
            for body in (b"", b"x" * 300_000):
                await stream.send_all(request("/a", body))
                await until(stream, b"POST /a ? " + body)
            await stream.send_all(request("/stream"))
            with trio.fail_after(5):
                await watched.cancelled.wait()  # it is not read
        await door.closed("write_stalled")
        watched.cancelled = trio.Event()
        stream = await secure(door, certificate)
        await stream.send_all(request("/stream"))
        with trio.fail_after(5):
            await stream.receive_some()
        await stream.transport_stream.aclose()
        with trio.fail_after(1):
            await watched.cancelled.wait()
        await door.closed("handshake_timeout", 4)
        for one in silent:
            await one.aclose()
        await door.settled()
        trust = ssl.create_default_context(cafile=str(certificate))
        where = f"wss://localhost:{door.address[1]}/socket"
        async with websocket_to(where, stream=await door.connect(), ssl=trust) as socket_:
            for message in ("hello", bytes(300_000)):
                await socket_.send(message)
                assert await socket_.recv() == message
            door.stop.set()
            with pytest.raises(ConnectionClosed) as ended:
                await socket_.recv()
            assert ended.value.rcvd is not None
            assert ended.value.rcvd.code == 1001
        with trio.fail_after(2):
            await door.over.wait()


async def test_slow_handshakes_delay_no_client(certificate: Path) -> None:
    """Neither who sends nothing, nor who stops in its first message, nor who does not go on behind the server's."""
    trust = ssl.create_default_context(cafile=str(certificate))
    wire = ssl.MemoryBIO()
    client = trust.wrap_bio(ssl.MemoryBIO(), wire, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    hello = wire.read()
    async with opened(tls=tls_context(str(certificate), None), limits=Limits(handshakes=1, handshake_s=1)) as door:
        slow = [await door.connect() for _ in range(9)]
        for one in slow[:3]:
            await one.send_all(hello[:-1])
        for one in slow[3:6]:
            await one.send_all(hello)
            assert await one.receive_some()
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for _ in range(9):

                async def ask() -> None:
                    async with await secure(door, certificate) as stream:
                        await stream.send_all(request("/", None, "Connection: close"))
                        assert (await until_end(stream)).endswith(b"GET / ? ")

                nursery.start_soon(ask)
        assert trio.current_time() - began < 0.5
        await door.closed("handshake_timeout", 9)
        for one in slow:
            await one.aclose()
        await door.settled()


async def test_the_response_to_an_unread_body_arrives(certificate: Path) -> None:
    """Its sender goes on for a while: the connection is not reset under it."""

    async def app(exchange: Exchange) -> None:
        await exchange.respond(413, [], b"too much")

    async with opened(app, tls=tls_context(str(certificate), None)) as door:
        for more in ("Connection: close", "X-More: nothing"):
            async with await secure(door, certificate) as stream:
                await stream.send_all(request("/", None, more, "Content-Length: 3000000", method="POST"))
                for _ in range(30):
                    await stream.send_all(bytes(100_000))
                    await trio.sleep(0.001)
                assert (await until_end(stream) if "close" in more else await until(stream, b"too much")).startswith(
                    b"HTTP/1.1 413 "
                )
        await door.closed("done", 2)


PLAIN_HTTP = {
    "GET": [request()],
    "a body": [request("/a", b"x" * 300_000)],
    "a WebSocket": [UPGRADE],
    "a begin": [b"OPTIONS "],
    "for a proxy": [b"CONNECT api.example:443 HTTP/1.1\r\n\r\n"],
    "byte by byte": [bytes([byte]) for byte in request("/", b"", method="DELETE")],
}


@pytest.mark.parametrize("said", PLAIN_HTTP)
async def test_plain_http_to_a_tls_port_gets_an_error_that_names_tls(certificate: Path, said: str) -> None:
    async with opened(forever, tls=tls_context(str(certificate), None)) as door:
        answer = await door.say(*PLAIN_HTTP[said])
        assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
        assert CLOSE in answer
        head, _, body = answer.partition(b"\r\n\r\n")
        assert b"content-length: %d\r\n" % len(body) in head
        assert "https://" in json.loads(body)["error"]["message"]
        await door.closed("plain_http")
        await door.settled()


@pytest.mark.parametrize("said", [b"GARBAGE", b"GEX /", b"get / HTTP/1.1\r\n\r\n", b"SSH-2.0-x\r\n", bytes(20)])
async def test_what_is_neither_tls_nor_http_is_closed(certificate: Path, said: bytes) -> None:
    async with opened(tls=tls_context(str(certificate), None)) as door:
        with contextlib.suppress(trio.BrokenResourceError):
            assert await door.say(said) == b""
        await door.closed("handshake_failed")
        await door.settled()


async def test_plain_http_has_the_deadlines_of_a_handshake_and_delays_no_client(certificate: Path) -> None:
    """One that stops behind a byte; one that neither reads nor closes; one that sends for ever. They take no place."""
    limits = Limits(handshake_s=0.6, handshakes=1, linger_s=0.3)

    async def send_for_ever(stream: trio.SocketStream) -> None:
        with contextlib.suppress(trio.BrokenResourceError):
            await stream.send_all(b"POST ")
            while True:
                await stream.send_all(bytes(65536))

    async with opened(tls=tls_context(str(certificate), None), limits=limits) as door, trio.open_nursery() as nursery:
        stops, holds, floods = [await door.connect() for _ in range(3)]
        began = trio.current_time()
        await stops.send_all(b"G")
        await holds.send_all(request())
        nursery.start_soon(send_for_ever, floods)
        async with await secure(door, certificate) as stream:
            await stream.send_all(request("/", None, "Connection: close"))
            assert (await until_end(stream, 0.5)).endswith(b"GET / ? ")
        await door.closed("plain_http", 2)
        assert 0.3 <= trio.current_time() - began < 2
        assert await until_end(stops) == b""
        await door.closed("handshake_timeout")
        for one in (stops, holds, floods):
            await one.aclose()
        await door.settled()


async def test_who_has_said_nothing_is_idle(certificate: Path) -> None:
    """It makes way for another one, and leaves as one that was between two requests."""
    tls = tls_context(str(certificate), None)
    async with opened(tls=tls, limits=Limits(connections=2)) as door:
        first, second = await door.connect(), await door.connect()
        async with await secure(door, certificate) as stream:
            await stream.send_all(request())
            await until(stream, b"GET / ? ")
            await door.closed("shed")
            assert await until_end(first) == b""
            await second.aclose()
            await door.closed("done")
        await first.aclose()


async def test_slow_handshakes_keep_no_client_out(certificate: Path) -> None:
    """They make way; who is told that this is TLS, and lingers, is not taken for one of them."""
    tls = tls_context(str(certificate), None)
    async with opened(tls=tls, limits=Limits(connections=3, linger_s=20)) as door:
        told, *slow = [await door.connect() for _ in range(3)]
        await told.send_all(request())
        await until(told, b"}")
        for begun in slow:
            await begun.send_all(b"\x16\x03\x01")
        await trio.sleep(0.02)
        async with await secure(door, certificate) as stream:
            await stream.send_all(request())
            await until(stream, b"GET / ? ")
        await door.closed("shed")
        assert await until_end(slow[0]) == b""
        for left in (told, *slow):
            await left.aclose()


async def test_a_waiting_client_does_not_end_the_handshake_of_another_one(certificate: Path) -> None:
    """With one place beside those that are being answered, everybody gets it in turn."""
    served = 0

    async def ask(door: Door) -> None:
        nonlocal served
        async with await secure(door, certificate) as stream:
            await stream.send_all(request("/", None, "Connection: close"))
            assert (await until_end(stream)).endswith(b"GET / ? ")
        served += 1

    async with opened(tls=tls_context(str(certificate), None), limits=Limits(connections=1)) as door:
        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(ask, door)
        await door.settled()
    assert served == 8
    assert not door.value("http_connections_closed_total", reason="shed")


async def test_handshakes_do_not_hold_up_the_end(certificate: Path) -> None:
    """One that says nothing is closed at once; one in the middle gets a second."""
    async with opened(tls=tls_context(str(certificate), None), grace_s=20) as door:
        silent, begun, plain = [await door.connect() for _ in range(3)]
        await begun.send_all(b"\x16\x03\x01\x02\x00\x01")
        await plain.send_all(b"GE")
        late = await secure(door, certificate)
        await trio.sleep(0.05)
        door.stop.set()
        assert await until_end(silent, 0.5) == b""
        for stream in (begun, plain):
            assert await until_end(stream, 2) == b""
        with trio.fail_after(3):
            await door.over.wait()
        assert door.value("http_connections_closed_total", reason="drained") == 4
        for one in (silent, begun, plain, late):
            await trio.aclose_forcefully(one)


async def test_who_comes_too_late_is_told_so(certificate: Path) -> None:
    """In a head, in a body, in a handshake that ends when the server drains: 503, by TLS."""
    watched = Watched(App().http)  # type: ignore[arg-type]
    async with opened(watched, tls=tls_context(str(certificate), None), grace_s=20) as door:
        streams = [await secure(door, certificate, strict=True) for _ in range(3)]
        head, body, late = streams
        await head.send_all(request()[:10])
        await body.send_all(request("/", b"body")[:-1])
        with trio.fail_after(5):
            await watched.begun.wait()
        async with await door.connect() as raw:  # it is greeted, and goes on when the drain has begun
            hello, wire = ssl.MemoryBIO(), ssl.MemoryBIO()
            trust = ssl.create_default_context(cafile=str(certificate))
            client = trust.wrap_bio(hello, wire, server_hostname="localhost")
            with pytest.raises(ssl.SSLWantReadError):
                client.do_handshake()
            await raw.send_all(wire.read())
            hello.write(await raw.receive_some())
            door.stop.set()
            for stream in (head, body):
                assert (await until_end(stream)).startswith(b"HTTP/1.1 503 ")
                await stream.aclose()
            client.do_handshake()
            await raw.send_all(wire.read())
            hello.write(await until_end(raw))
            assert client.read().startswith(b"HTTP/1.1 503 ")
        await trio.aclose_forcefully(late)
        with trio.fail_after(3):
            await door.over.wait()


async def test_an_answer_that_the_connections_end_ends_is_known_to_be_whole(certificate: Path) -> None:
    """TLS tells an end from a connection that was cut, and the server says it."""

    async def app(exchange: Exchange) -> None:
        await exchange.start(200, [], b"all ")
        await exchange.finish(b"of it")

    async with opened(app, tls=tls_context(str(certificate), None)) as door:
        for asks in (b"GET / HTTP/1.0\r\n\r\n", request("/", None, "Connection: close")):
            stream = await secure(door, certificate, strict=True)
            await stream.send_all(asks)
            assert b"of it" in await until_end(stream)
            await stream.aclose()
        await door.closed("done", 2)


async def test_a_certificate_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "none.pem").write_text("nothing")
    with pytest.raises(OSError):
        tls_context(str(tmp_path / "none.pem"), None)
