"""A stranger's server, at the other end of a URL that a client sent."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager

import trio
from tests.fuzz.inputs import refusing
from tests.fuzz.target import One, Target, chance, cuts

from omni_actors.media.limits import Limits
from omni_actors.media.service.fetch import Fetcher

_LIMITS = Limits(allowed_hosts=("a.example",), fetch_s=5.0, max_blob_bytes=1 << 20)


@contextmanager
def _fetch() -> Iterator[One]:
    """It answers every request with the input, in pieces, and closes."""

    def one(data: bytes) -> None:
        modality = chance(data).choice(("image", "audio", "video"))

        async def serve(stream: trio.SocketStream) -> None:
            async with stream:
                with contextlib.suppress(trio.BrokenResourceError):
                    await stream.receive_some()
                    for piece in cuts(data, 4):
                        await stream.send_all(piece)

        async def resolve(host: str, port: int) -> list[str]:
            return ["127.0.0.1"] if host == "a.example" else ["169.254.169.254"]

        async def main() -> None:
            async with trio.open_nursery() as nursery:
                listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
                await nursery.start(trio.serve_listeners, serve, listeners)
                port = listeners[0].socket.getsockname()[1]
                fetcher = Fetcher(_LIMITS, resolver=resolve)
                with refusing():
                    async with fetcher.open(f"http://a.example:{port}/x", modality, "url") as download:
                        size = sum([len(piece) async for piece in download.pieces])
                        assert size == download.size <= _LIMITS.max_blob_bytes
                nursery.cancel_scope.cancel()

        try:
            trio.run(main)
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None

    yield one


def _seeds() -> list[bytes]:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: image/png\r\n"
    return [
        head + b"Content-Length: 5\r\n\r\nhello",
        head + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        head + b"\r\nuntil the end",
        head.replace(b"image/png", b"video/mp4; a=b") + b"Content-Encoding: gzip\r\n\r\n",
        b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" * 3 + head + b"\r\nx",
        b"HTTP/1.1 302 Found\r\nLocation: http://b.example/latest/meta-data\r\n\r\n",
        b"HTTP/1.1 307 Found\r\nLocation: //[::1\r\n\r\n",
        b"HTTP/1.0 404 Not Found\r\n\r\n",
        b"ICY 200 OK\r\n\r\n",
    ]


_WORDS = (
    b"\r\n\r\n",
    b"Location: ",
    b"http://a.example",
    b"http://[fe80::1%25eth0]/",
    b"Content-Length: 99999999999999999999",
    b"Content-Length: -1",
    b"Transfer-Encoding: chunked\r\n",
    b"HTTP/1.1 206 ",
    b"HTTP/1.1 999 ",
    b"fffffffff\r\n",
    b"\x00",
    b"\xff",
)

TARGETS = (Target("fetch", "OmniError below 500", _fetch, _seeds, _WORDS),)
