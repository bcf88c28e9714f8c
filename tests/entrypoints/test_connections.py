"""A connection's failure is its own, and a connection that its client has left is closed."""

from __future__ import annotations

import os
import struct

import pytest
import trio
from tests.entrypoints.fakes import Server, served

from omni_actors.protocol.request import Completed, TextDelta

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
UPGRADE = b"GET /v1/realtime HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
UPGRADE += b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """An HTTP/2 frame."""
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


SETTINGS = frame(4, 0, 0, b"")
HOSTILE = {
    "a path that is not ASCII over HTTP/2": PREFACE + SETTINGS + frame(1, 5, 1, b"\x82\x86\x44\x02/\xe9\x41\x01x"),
    "CONNECT without a path over HTTP/2": PREFACE + SETTINGS + frame(1, 5, 1, b"\x42\x07CONNECT\x41\x01x"),
    "a flood of priorities over HTTP/2": PREFACE
    + SETTINGS
    + b"".join(frame(2, 0, 2 * i + 1, b"\0\0\0\0\x10") for i in range(1200)),
    "a byte behind an upgrade": UPGRADE + b"\x00",
    "a frame behind an upgrade": UPGRADE + b"\x81\x85\x00\x00\x00\x00hello",
    "a request behind an upgrade": UPGRADE + b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n",
    "garbage": bytes(range(256)) * 64,
    "a TLS hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
    "a header without end": b"GET / HTTP/1.1\r\nX: " + b"a" * 200_000,
    "a chunk of no size": b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
}


def address(server: Server) -> tuple[str, int]:
    host, port = server.url.removeprefix("http://").split(":")
    return host, int(port)


@pytest.mark.parametrize("what", HOSTILE)
async def test_what_a_client_sends_ends_its_own_connection_at_most(what: str) -> None:
    go_on = trio.Event()
    async with served(lambda request: [TextDelta(0, 0, "x", []), go_on, Completed({})]) as server:
        body = {"model": "assistant", "messages": [{"role": "user", "content": "x"}], "stream": True}
        async with server.client.stream("POST", "/v1/chat/completions", json=body) as other:
            async with await trio.open_tcp_stream(*address(server)) as stream:
                with trio.move_on_after(1):
                    try:
                        await stream.send_all(HOSTILE[what])
                        while await stream.receive_some(65536):
                            pass
                    except trio.BrokenResourceError:
                        pass
            with trio.fail_after(5):
                assert (await server.client.get("/live")).status_code == 200
            go_on.set()
            with trio.fail_after(5):
                assert (await other.aread()).endswith(b"data: [DONE]\n\n")


async def test_a_connection_that_its_client_has_closed_holds_no_descriptor() -> None:
    async with served(lambda request: [Completed({})]) as server:
        await server.client.get("/live")
        before = len(os.listdir("/proc/self/fd"))
        for pause in [0.0] * 20 + [0.02] * 20:
            stream = await trio.open_tcp_stream(*address(server))
            await stream.send_all(b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n")
            assert await stream.receive_some(65536)
            await trio.sleep(pause)
            await stream.aclose()
        with trio.fail_after(5):
            while len(os.listdir("/proc/self/fd")) > before:
                await trio.sleep(0.01)


async def test_a_websocket_finds_no_route_and_says_so() -> None:
    async with (
        served(lambda request: [Completed({})]) as server,
        await trio.open_tcp_stream(*address(server)) as stream,
    ):
        await stream.send_all(UPGRADE)
        with trio.fail_after(5):
            answer = await stream.receive_some(65536)
        assert answer.split(b"\r\n")[0].startswith(b"HTTP/1.1 404")
