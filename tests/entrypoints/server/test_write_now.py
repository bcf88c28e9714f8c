"""An answer's pieces that are written without waiting, by who is not its task."""

from __future__ import annotations

import trio
import trio.lowlevel
from tests.entrypoints.server.door import PLAIN, opened, request

from omni_actors.entrypoints.server import Exchange, Limits


async def test_pieces_keep_their_order_and_none_is_lost_when_the_client_is_behind() -> None:
    """What does not fit is refused whole, or its rest leaves before what is written next."""
    pieces = [b"%06d" % number * 3000 for number in range(150)]
    refused = 0

    async def answer(exchange: Exchange) -> None:
        nonlocal refused
        await exchange.start(200, PLAIN)
        for piece in pieces:
            if not exchange.write_now(piece):
                refused += 1
                await exchange.write(piece)
        await exchange.finish()

    async with opened(answer) as door, await door.connect() as stream:
        await stream.send_all(request("/"))
        received = bytearray()
        with trio.fail_after(10):
            while not received.endswith(b"\r\n0\r\n\r\n"):
                received += await stream.receive_some(20_000)
                await trio.lowlevel.checkpoint()
        body, rest = b"", bytes(received).partition(b"\r\n\r\n")[2]
        while rest != b"0\r\n\r\n":
            size, _, rest = rest.partition(b"\r\n")
            length = int(size, 16)
            body, rest = body + rest[:length], rest[length + 2 :]
        assert body == b"".join(pieces)
        assert refused


async def test_it_writes_nothing_into_the_middle_of_another_piece() -> None:
    piece = bytes(8 << 20)
    seen: list[bool] = []

    async def answer(exchange: Exchange) -> None:
        async def write() -> None:
            await exchange.write(piece)
            written.set()

        await exchange.start(200, PLAIN)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            await trio.lowlevel.checkpoint()
            while not written.is_set():
                seen.append(exchange.write_now(b"x"))
                await trio.lowlevel.checkpoint()
        await exchange.finish()

    written = trio.Event()
    async with opened(answer) as door, await door.connect() as stream:
        await stream.send_all(request("/"))
        received = bytearray()
        with trio.fail_after(10):
            while not received.endswith(b"\r\n0\r\n\r\n"):
                received += await stream.receive_some(1 << 16)
                await trio.lowlevel.checkpoint()
    assert b"%x\r\n%b\r\n" % (len(piece), piece) in received
    assert seen


async def test_it_writes_nothing_outside_a_streamed_answer() -> None:
    seen: list[bool] = []

    async def answer(exchange: Exchange) -> None:
        seen.append(exchange.write_now(b"early"))
        await exchange.start(200, [*PLAIN, (b"content-length", b"2")])
        seen.append(exchange.write_now(b"x"))
        await exchange.finish(b"ab")
        seen.append(exchange.write_now(b"late"))

    async with opened(answer) as door:
        said = await door.say(request("/").replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        assert said.endswith(b"\r\n\r\nab")
        assert seen == [False, False, False]


async def test_a_client_that_takes_nothing_is_cut_off_all_the_same() -> None:
    async def answer(exchange: Exchange) -> None:
        await exchange.start(200, PLAIN)
        while True:
            if not exchange.write_now(bytes(10_000)):
                await exchange.write(b"more")

    async with opened(answer, limits=Limits(write_s=0.2)) as door, await door.connect() as stream:
        await stream.send_all(request("/"))
        await door.closed("write_stalled")
