"""Our WebSocket server by the Autobahn suite's cases, over a real socket, however the stream is cut."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
import trio
from tests.conformance.rfc6455 import ACCEPT, CLOSE, CONT, PING, TEXT, UPGRADE, Said, expected, frame, read_frames
from tests.conformance.websocket_cases import GROUPS, KOSME, NORMAL, Case
from tests.entrypoints.server.door import Door, opened, socket_to

from omni_actors.entrypoints.server import Limits

SMALL = 2000
"""Bytes up to which a stream is sent byte by byte."""


def whole(frames: Sequence[bytes]) -> list[bytes]:
    return [b"".join(frames)]


def by_frame(frames: Sequence[bytes]) -> list[bytes]:
    return list(frames)


def by_octet(frames: Sequence[bytes]) -> list[bytes]:
    data = b"".join(frames)
    return [data[at : at + 1] for at in range(len(data))] if len(data) <= SMALL else at_random(frames)


def at_random(frames: Sequence[bytes]) -> list[bytes]:
    data = b"".join(frames)
    dice = random.Random(len(data))
    places = sorted(dice.randrange(len(data) + 1) for _ in range(min(40, len(data))))
    return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True) if a < b]


async def answer(door: Door, pieces: Sequence[bytes]) -> Said:
    """What the server says to a stream until it closes."""
    received = bytearray()
    async with await door.connect() as stream:

        async def send() -> None:
            try:
                for piece in pieces:
                    await stream.send_all(piece)
                    await trio.lowlevel.checkpoint()  # so that the server sees them one by one
            except trio.BrokenResourceError:  # it has closed already
                return

        async with trio.open_nursery() as nursery:
            await stream.send_all(UPGRADE)
            nursery.start_soon(send)
            with trio.fail_after(20):
                try:
                    while part := await stream.receive_some():
                        received += part
                except trio.BrokenResourceError:  # what was sent behind a close came to a closed socket
                    pass
            nursery.cancel_scope.cancel()
    head, _, rest = bytes(received).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 101 ")
    assert b"sec-websocket-accept: " + ACCEPT.lower() in head.lower()
    return read_frames(rest)


def difference(case: Case, said: Said) -> str | None:
    if said == case.said:
        return None
    texts = [f"{len(it.messages)} messages, pongs {it.pongs}, close {it.closed}" for it in (said, case.said)]
    return f"{case.id}: {texts[0]}, not {texts[1]}"


@pytest.mark.deadline(90)
@pytest.mark.parametrize("cut", [whole, by_frame, by_octet, at_random])
@pytest.mark.parametrize("group", GROUPS)
async def test_autobahns_cases(group: str, cut: Callable[[Sequence[bytes]], list[bytes]]) -> None:
    failed = []
    async with opened() as door:
        for case in GROUPS[group]():
            if difference_ := difference(case, await answer(door, cut(case.wire))):
                failed.append(difference_)
        await door.settled()
    assert not failed, "\n".join(failed)


@pytest.mark.parametrize("group", list(GROUPS)[:-1])
def test_the_table_and_the_standards_judge_agree(group: str) -> None:
    """Each is written for itself; a case that one of them has wrong would show here."""
    for case in GROUPS[group]():
        assert expected(_frames(b"".join(case.wire))) == case.said, case.id


def _frames(wire: bytes) -> list[tuple[bool, int, int, bytes]]:
    found = []
    while wire:
        size, at = wire[1] & 0x7F, 2
        if size > 125:
            width = 2 if size == 126 else 8
            size, at = int.from_bytes(wire[2 : 2 + width]), 2 + width
        key, data = wire[at : at + 4], wire[at + 4 : at + 4 + size]
        payload = bytes(byte ^ key[place % 4] for place, byte in enumerate(data))
        found.append((wire[0] > 127, wire[0] >> 4 & 7, wire[0] & 15, payload))
        wire = wire[at + 4 + size :]
    return found


async def test_5_19_pings_between_fragments_are_answered_before_the_message_ends() -> None:
    async with opened() as door, socket_to(door) as client:
        await client.send(frame(TEXT, b"1", fin=False), frame(CONT, b"2", fin=False), frame(PING, b"a"))
        assert await client.read() == (10, b"a")
        await client.send(frame(CONT, b"3", fin=False), frame(PING, b"b"))
        assert await client.read() == (10, b"b")
        await client.send(frame(CONT, b"4"))
        assert await client.read() == (1, b"1234")


@pytest.mark.parametrize("second", [b"\xf4\x90\x80\x80", b"\xf4\x90", b"\xff"])
async def test_6_4_broken_text_fails_as_soon_as_its_fragment_is_whole(second: bytes) -> None:
    """Nothing more is sent: the server does not wait for the message's end."""
    async with opened() as door, socket_to(door) as client:
        await client.send(frame(TEXT, KOSME, fin=False), frame(CONT, second, fin=False))
        assert await client.code() == 1007


@pytest.mark.parametrize(
    "frames",
    [
        [frame(TEXT, b"x", key=None)],
        [b"\x81\xff" + b"\xff" * 8 + bytes(4)],
        [frame(CLOSE, NORMAL, key=None)],
    ],
    ids=["unmasked", "a length of 64 bits and its sign", "an unmasked close"],
)
async def test_what_no_client_may_send(frames: list[bytes]) -> None:
    async with opened() as door:
        said = await answer(door, frames)
        assert said.messages == []
        assert said.closed in (1002, 1009)


@pytest.mark.parametrize("least", [1, 2])
async def test_a_length_longer_than_need_be_is_taken(least: int) -> None:
    async with opened() as door:
        said = await answer(door, [frame(TEXT, b"Hello", least=least), frame(CLOSE, NORMAL)])
        assert said == Said(["Hello"], [], 1000)


async def test_9_9_a_message_without_end_is_1009() -> None:
    async with opened(limits=Limits(message_bytes=64 << 10)) as door:
        endless = [frame(TEXT, b"*" * 4096, fin=False), *[frame(CONT, b"*" * 4096, fin=False)] * 16]
        assert await answer(door, endless) == Said([], [], 1009)


async def test_12_compression_that_is_offered_is_not_taken() -> None:
    """So its frames are broken ones: RSV1 means nothing."""
    offer = b"\r\nSec-WebSocket-Extensions: permessage-deflate; client_max_window_bits\r\n\r\n"
    async with opened() as door:
        said = await door.say(UPGRADE[:-4] + offer, frame(TEXT, b"\xf2H\xcd\xc9\xc9\x07\x00", rsv=4))
        head, _, rest = said.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101 ")
        assert b"extensions" not in head.lower()
        assert read_frames(rest).closed == 1002
