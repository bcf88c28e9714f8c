"""WebSockets by RFC 6455: handshake, frames, messages, closing, and clients that leave or fall silent."""

from __future__ import annotations

import logging
import time
import tracemalloc
from contextlib import suppress

import pytest
import trio
import trio.lowlevel
from tests.entrypoints.server.door import (
    UPGRADE,
    Watched,
    echo_socket,
    frame,
    opened,
    request,
    reset,
    socket_to,
    until_end,
)
from websockets.exceptions import ConnectionClosed
from websockets.trio.client import connect

from omni_actors.entrypoints.server import Limits, SocketClosed, WebSocket

TEXT, BINARY, CONT, CLOSE, PING, PONG = 1, 2, 0, 8, 9, 10


async def test_messages_of_every_length() -> None:
    async with opened() as door, connect(door.url.replace("http", "ws") + "/socket", max_size=None) as socket:
        for size in (0, 1, 125, 126, 127, 65535, 65536, 1 << 20):
            await socket.send("é" * size)
            assert await socket.recv() == "é" * size
            await socket.send(b"\xff" * size)
            assert await socket.recv() == b"\xff" * size
        await socket.aclose(4321, "enough")
        assert socket.protocol.close_code == 4321
        await door.closed("done")


async def test_a_fragmented_message_with_a_ping_in_it() -> None:
    async with opened() as door, socket_to(door) as client:
        snowman = "☃".encode()
        await client.send(
            frame(TEXT, snowman[:1], fin=False),
            frame(CONT, snowman[1:2], fin=False),
            frame(PING, b"are you there"),
            frame(CONT, b"", fin=False),
            frame(CONT, snowman[2:]),
            frame(BINARY, b"a", fin=False),
            frame(CONT, b"b", fin=False),
            frame(CONT, b""),
        )
        assert await client.read() == (PONG, b"are you there")
        assert await client.read() == (TEXT, snowman)
        assert await client.read() == (BINARY, b"ab")


async def test_byte_by_byte() -> None:
    async with opened() as door, socket_to(door) as client:
        for byte in frame(TEXT, b"hello" * 50) + frame(PONG, b"unasked") + frame(BINARY, b""):
            await client.send(bytes([byte]))
        assert await client.read() == (TEXT, b"hello" * 50)
        assert await client.read() == (BINARY, b"")


def close_frame(code: int, reason: bytes = b"") -> bytes:
    return frame(CLOSE, code.to_bytes(2, "big") + reason)


BROKEN = {
    "a reserved opcode": (frame(3), 1002),
    "a reserved control opcode": (frame(11), 1002),
    "a reserved bit": (frame(TEXT, b"a", rsv=4), 1002),
    "a frame without a mask": (frame(TEXT, b"a", mask=False), 1002),
    "a fragmented ping": (frame(PING, b"a", fin=False), 1002),
    "a ping of 126 bytes": (frame(PING, bytes(126)), 1002),
    "a continuation of nothing": (frame(CONT, b"a"), 1002),
    "a message within a message": (frame(TEXT, b"a", fin=False) + frame(TEXT, b"b"), 1002),
    "a close of one byte": (frame(CLOSE, b"\x03"), 1002),
    "a close with a code that is nobody's": (close_frame(999), 1002),
    "a close with a code that is not sent": (close_frame(1005), 1002),
    "a close with a reason that is not UTF-8": (close_frame(1000, b"\xff"), 1007),
    "text that is not UTF-8": (frame(TEXT, b"\xff"), 1007),
    "text that ends within a character": (frame(TEXT, "☃".encode()[:2]), 1007),
    "fragments that are not UTF-8": (frame(TEXT, b"a", fin=False) + frame(CONT, b"\xc0\xaf"), 1007),
    "a surrogate": (frame(TEXT, b"\xed\xa0\x80"), 1007),
    "a message over the limit": (frame(BINARY, bytes(1001)), 1009),
    "fragments over the limit": (frame(BINARY, bytes(600), fin=False) + frame(CONT, bytes(600), fin=False), 1009),
    "a length over the limit, and nothing else": (b"\x82\xff" + (1 << 62).to_bytes(8, "big"), 1009),
}


@pytest.mark.parametrize("what", BROKEN)
async def test_what_breaks_the_protocol_is_closed_with_its_code(what: str) -> None:
    data, code = BROKEN[what]
    async with opened(limits=Limits(message_bytes=1000, linger_s=0.1)) as door, socket_to(door) as client:
        await client.send(frame(TEXT, b"before"), data, frame(TEXT, b"behind"))
        assert await client.read() == (TEXT, b"before")
        assert await client.code() == code
        assert await client.read() == (-1, b"")
        await door.settled()


async def test_a_message_over_the_limit_is_1009_with_a_reason() -> None:
    async with opened(limits=Limits(message_bytes=16 << 20)) as door:
        async with connect(door.url.replace("http", "ws") + "/socket", max_size=None) as socket:
            await socket.send(bytes(16 << 20))
            assert len(await socket.recv()) == 16 << 20
            with pytest.raises(ConnectionClosed) as ended:
                await socket.send(bytes(17 << 20))
                await socket.recv()
            assert ended.value.rcvd is not None
            assert ended.value.rcvd.code == 1009
            assert ended.value.rcvd.reason


@pytest.mark.parametrize("half", [frame(BINARY, bytes(600), fin=False), frame(BINARY, bytes(700))[:-100]])
async def test_of_too_many_half_messages_the_largest_is_closed(half: bytes) -> None:
    """Each is within its own limit; together they are not. Who finishes what it begins is not the one to go."""
    limits = Limits(message_bytes=1000, unfinished_bytes=1500, close_s=0.1)
    async with opened(limits=limits) as door, socket_to(door) as small, socket_to(door) as large:
        await small.send(frame(TEXT, bytes(500), fin=False), frame(PING))
        assert await small.read() == (PONG, b"")
        for _ in range(3):  # what leaves takes nothing of the room
            async with socket_to(door) as leaving:
                await leaving.send(frame(TEXT, bytes(400), fin=False), frame(PING))
                assert await leaving.read() == (PONG, b"")
        await door.closed("done", 3)
        await large.send(half)
        async with socket_to(door) as third:
            await third.send(frame(TEXT, bytes(500), fin=False))
            assert await large.code() == 1013
            await third.send(frame(CONT, b"!"))
            assert await third.read() == (TEXT, bytes(500) + b"!")
        await small.send(frame(CONT, b"!"))
        assert await small.read() == (TEXT, bytes(500) + b"!")


@pytest.mark.parametrize("kind", [TEXT, BINARY])
async def test_a_message_in_small_pieces_takes_no_more_memory_than_its_bytes(kind: int) -> None:
    async def handler(socket: WebSocket) -> None:
        await socket.accept()
        await socket.receive()

    pieces = 4096
    first, more = frame(kind, b"ab", fin=False), frame(CONT, b"ab", fin=False)
    async with opened(websocket=handler) as door, socket_to(door) as client:
        tracemalloc.start()
        try:
            await client.send(first, more * pieces, frame(PING))
            assert await client.read() == (PONG, b"")
            taken, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert taken < 24 * pieces


@pytest.mark.parametrize("code", [1000, 1001, 1003, 1012, 3000, 4999])
async def test_a_clients_close_is_answered_with_its_code(code: int) -> None:
    seen: list[SocketClosed] = []

    async def handler(socket: WebSocket) -> None:
        await socket.accept()
        try:
            await socket.receive()
        except SocketClosed as closed:
            seen.append(closed)
            with pytest.raises(SocketClosed):
                await socket.send("too late")

    async with opened(websocket=handler, limits=Limits(linger_s=0.1)) as door, socket_to(door) as client:
        await client.send(close_frame(code, b"why"))
        assert await client.code() == code
        assert await client.read() == (-1, b"")
        assert [(closed.code, closed.reason) for closed in seen] == [(code, "why")]
        await door.closed("done")


async def test_a_close_without_a_code() -> None:
    async with opened(limits=Limits(linger_s=0.1)) as door, socket_to(door) as client:
        await client.send(frame(CLOSE))
        assert await client.read() == (CLOSE, b"")
        await door.closed("done")


async def test_the_handlers_end_closes_the_socket(caplog: pytest.LogCaptureFixture) -> None:
    async def handler(socket: WebSocket) -> None:
        await socket.accept()
        what = await socket.receive()
        if what == "fail":
            raise RuntimeError("secret")
        if what == "close":
            await socket.close(4000, "x" * 200)

    async with opened(websocket=handler) as door:
        for what, code in (("return", 1000), ("fail", 1011), ("close", 4000)):
            async with socket_to(door) as client:
                await client.send(frame(TEXT, what.encode()))
                assert await client.code() == code
                await client.send(close_frame(code))
                assert await client.read() == (-1, b"")
        await door.closed("done", 3)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == [
        "unexpected failure of WebSocket '/socket'"
    ]


async def test_a_client_that_does_not_answer_a_close() -> None:
    async def handler(socket: WebSocket) -> None:
        await socket.accept()

    async with opened(websocket=handler, limits=Limits(close_s=0.2, linger_s=20)) as door, socket_to(door) as client:
        assert await client.code() == 1000
        assert await client.read(1) == (-1, b"")
        await door.closed("close_timeout")
        await door.settled()


HANDSHAKES = {
    "no key": (b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n", b"", 400),
    "a short key": (b"dGhlIHNhbXBsZSBub25jZQ==", b"c2hvcnQ=", 400),
    "no version": (b"Sec-WebSocket-Version: 13\r\n", b"", 400),
    "another version": (b"Version: 13", b"Version: 8", 426),
    "another method": (b"GET", b"POST", 405),
    "HTTP/1.0": (b"HTTP/1.1", b"HTTP/1.0", 505),
    "a body": (b"Host: x", b"Host: x\r\nContent-Length: 5", 400),
    "a chunked body": (b"Host: x", b"Host: x\r\nTransfer-Encoding: chunked", 400),
}


@pytest.mark.parametrize("what", HANDSHAKES)
async def test_a_wrong_handshake_is_refused(what: str) -> None:
    old, new, status = HANDSHAKES[what]
    async with opened() as door:
        answer = await door.say(UPGRADE.replace(old, new))
        assert answer.startswith(b"HTTP/1.1 %d " % status), answer
        if status == 426:
            assert b"sec-websocket-version: 13\r\n" in answer
        await door.settled()


async def test_a_handler_chooses() -> None:
    async def handler(socket: WebSocket) -> None:
        if socket.path == "/no":
            await socket.reject(404, [(b"content-type", b"text/plain")], b"no such thing")
        elif socket.path == "/yes":
            await socket.accept([(b"x-more", b"1")], socket.subprotocols[1])
        elif socket.path == "/fails":
            raise RuntimeError("secret")

    async with opened(websocket=handler) as door:
        offer = UPGRADE.replace(b"Host: x", b"Host: x\r\nSec-WebSocket-Protocol: one, two")
        for path, status in ((b"/no", 404), (b"/fails", 500), (b"/nothing", 403)):
            answer = await door.say(offer.replace(b"/socket", path))
            assert answer.startswith(b"HTTP/1.1 %d " % status)
            assert b"secret" not in answer
        async with await door.connect() as stream:
            await stream.send_all(offer.replace(b"/socket", b"/yes") + close_frame(1000))
            answer = (await until_end(stream)).lower()
            assert answer.startswith(b"http/1.1 101 ")
            assert b"sec-websocket-protocol: two\r\n" in answer
            assert b"x-more: 1\r\n" in answer


async def test_frames_may_come_with_the_handshake() -> None:
    async with opened() as door, socket_to(door, frame(TEXT, b"early"), frame(TEXT, b"bird")) as client:
        assert await client.read() == (TEXT, b"early")
        assert await client.read() == (TEXT, b"bird")


@pytest.mark.parametrize("early", [b"\x00", frame(TEXT, b"hello"), request("/two"), bytes(100_000)])
async def test_whatever_follows_an_upgrade_ends_that_connection_at_most(early: bytes) -> None:
    """Accepted or refused; the next client is served."""

    async def handler(socket: WebSocket) -> None:
        if socket.path != "/socket":
            await socket.reject(404, [], b"no")
        else:
            await echo_socket(socket)

    async with opened(websocket=handler, limits=Limits(close_s=0.3, linger_s=0.3)) as door:
        for path in (b"/socket", b"/unknown"):
            async with await door.connect() as stream:
                await stream.send_all(UPGRADE.replace(b"/socket", path) + early)
                with trio.move_on_after(0.5):
                    await until_end(stream)
            assert (await door.say(request("/", None, "Connection: close"))).startswith(b"HTTP/1.1 200 ")
        await door.settled()


async def send_forever(socket: WebSocket) -> None:
    await socket.accept()
    while True:
        await socket.send(bytes(65536))


async def wait_forever(socket: WebSocket) -> None:
    await socket.accept()
    await trio.sleep_forever()


async def listen(socket: WebSocket) -> None:
    await socket.accept()
    while True:
        await socket.receive()


@pytest.mark.parametrize("how", ["end", "reset", "half"])
@pytest.mark.parametrize("work", [send_forever, wait_forever, listen])
async def test_a_client_that_leaves_ends_the_handler_at_once(work: object, how: str) -> None:
    over = trio.Event()

    async def handler(socket: WebSocket) -> None:
        try:
            await work(socket)  # type: ignore[operator]
        finally:
            over.set()

    async with opened(websocket=handler) as door:
        async with socket_to(door) as client:
            if how == "end":
                await client.stream.aclose()
            elif how == "reset":
                reset(client.stream)
            else:
                await client.stream.send_eof()
            with trio.fail_after(1):
                await over.wait()
        await door.settled()


async def test_earlier_messages_of_a_client_that_left_are_received() -> None:
    got: list[str | bytes] = []
    codes: list[int] = []

    async def handler(socket: WebSocket) -> None:
        await socket.accept()
        try:
            while True:
                got.append(await socket.receive())
        except SocketClosed as closed:
            codes.append(closed.code)

    async with opened(websocket=handler) as door, socket_to(door) as client:
        await client.send(frame(TEXT, b"x" * 300) * 1000)
        await client.stream.aclose()
        await door.settled()
    assert len(got) == 1000
    assert codes == [1006]


async def test_earlier_messages_of_a_client_that_left_have_a_deadline() -> None:
    """A handler that is deep in the first of it is cancelled then."""
    cancelled = trio.Event()

    async def handler(socket: WebSocket) -> None:
        await socket.accept()
        await socket.receive()
        try:
            await trio.sleep_forever()
        finally:
            cancelled.set()

    for last in (b"", close_frame(1000)):
        async with opened(websocket=handler, limits=Limits(close_s=0.2)) as door, socket_to(door) as client:
            cancelled = trio.Event()
            await client.send(frame(TEXT, b"one") + frame(TEXT, b"two") + last)
            await client.stream.aclose()
            with trio.fail_after(2):
                await cancelled.wait()
            await door.closed("client_left")


async def test_a_websocket_that_is_not_read_is_cut_off() -> None:
    """With pings asked for and never read, too: answers wait for their reader like everything else."""
    watched = Watched(send_forever)  # type: ignore[arg-type]
    async with opened(websocket=watched, limits=Limits(write_s=0.3)) as door, socket_to(door) as client:
        with trio.fail_after(5):
            await watched.cancelled.wait()
        await door.closed("write_stalled")
        with pytest.raises(trio.BrokenResourceError):
            await until_end(client.stream)
    async with opened(limits=Limits(write_s=0.3)) as door, socket_to(door) as client:
        with pytest.raises(trio.BrokenResourceError):
            while True:
                await client.send(frame(PING, bytes(125)) * 1000)
        await door.closed("write_stalled")


async def test_the_applications_own_deadline_holds_around_a_send() -> None:
    given_up = trio.Event()

    async def handler(socket: WebSocket) -> None:
        await socket.accept()
        with trio.move_on_after(0.2):
            while True:
                await socket.send(bytes(1 << 20))
        given_up.set()

    async with opened(websocket=handler, limits=Limits(close_s=0.1)) as door, socket_to(door):
        with trio.fail_after(1):
            await given_up.wait()
        await door.settled()


async def test_several_tasks_send_whole_messages() -> None:
    """While another task answers pings; and what one sends stays in its order."""

    async def handler(socket: WebSocket) -> None:
        await socket.accept()

        async def send(name: str) -> None:
            for number in range(40):
                await socket.send(f"{name}{number:02}" * 5_000)

        async with trio.open_nursery() as nursery:
            for name in "abc":
                nursery.start_soon(send, name)
            await socket.receive()

    async with opened(websocket=handler) as door, socket_to(door) as client:
        await client.send(frame(PING, b"now"))
        seen: dict[str, list[int]] = {"a": [], "b": [], "c": []}
        pongs = 0
        while sum(map(len, seen.values())) < 120:
            opcode, payload = await client.read()
            if opcode == PONG:
                pongs += 1
                continue
            assert len({payload.decode()[at : at + 3] for at in range(0, len(payload), 3)}) == 1
            seen[chr(payload[0])].append(int(payload[1:3]))
        assert all(numbers == list(range(40)) for numbers in seen.values())
        assert pongs == 1
        await client.send(frame(TEXT, b"done"), close_frame(1000))


async def test_a_silent_client_is_asked_and_then_closed() -> None:
    async with opened(limits=Limits(ping_s=0.2)) as door:
        async with socket_to(door) as client:
            for _ in range(3):  # it answers
                opcode, payload = await client.read()
                assert opcode == PING
                await client.send(frame(PONG, payload))
            assert (await client.read())[0] == PING
            began = trio.current_time()
            assert await client.code() == 1011
            assert trio.current_time() - began < 1
        await door.closed("ping_timeout")
    async with opened(limits=Limits(ping_s=0)) as door, socket_to(door) as client:
        with trio.move_on_after(0.4):
            raise AssertionError(await client.read())


async def test_a_receive_that_is_given_up_loses_nothing() -> None:
    got: list[str | bytes] = []

    async def handler(socket: WebSocket) -> None:
        await socket.accept()
        while True:
            with trio.move_on_after(0.0003):
                got.append(await socket.receive())

    async with opened(websocket=handler) as door, socket_to(door) as client:
        messages = [str(number) * 200 for number in range(500)]
        for message in messages:
            await client.send(frame(1, message.encode()))
            await trio.lowlevel.checkpoint()
        with trio.fail_after(5):
            while len(got) < len(messages):
                await trio.sleep(0.002)
        assert got == messages


async def test_a_flood_of_tiny_frames_lets_others_run() -> None:
    async def handler(socket: WebSocket) -> None:
        await socket.accept()
        while True:
            await socket.receive()

    async with opened(websocket=handler) as door, socket_to(door) as client, trio.open_nursery() as nursery:

        async def flood() -> None:
            data = frame(TEXT) * 50_000
            while True:
                await client.send(data)

        nursery.start_soon(flood)
        await trio.sleep(0.1)
        longest = 0.0
        for _ in range(50):
            began = time.process_time()  # what this process itself does in one turn, however busy the machine is
            await trio.lowlevel.checkpoint()
            longest = max(longest, time.process_time() - began)
        nursery.cancel_scope.cancel()
        assert longest < 0.05


@pytest.mark.parametrize("early", [frame(PING, b"a"), frame(3, b"reserved"), frame(TEXT, b"\xff"), frame(CLOSE, b"")])
@pytest.mark.parametrize("accepts", [True, False])
async def test_frames_that_come_early_are_answered_behind_the_handshake(early: bytes, accepts: bool) -> None:
    """Also where the application listens before it accepts, as ASGI frameworks do."""

    async def listens(socket: WebSocket) -> None:
        with trio.move_on_after(0.1), suppress(SocketClosed):
            await socket.receive()
        if accepts:
            await socket.accept()
            await socket.receive()
        else:
            await socket.reject(404, [])

    async with opened(websocket=listens) as door:
        said = await door.say(UPGRADE, early, frame(CLOSE, b"\x03\xe8"))
        assert said.startswith(b"HTTP/1.1 101 " if accepts else b"HTTP/1.1 404 ")
        assert (b"\x88" in said.partition(b"\r\n\r\n")[2]) == accepts  # a close
