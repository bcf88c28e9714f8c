"""A load of chats for a server on this machine, in closed loops or at a fixed rate, for benchmarks of overload.

``python -m httpload.open_loop PORT closed|opened AMOUNT SECONDS SHARE KEY OTHER``, with the body on standard input.
``closed`` runs ``AMOUNT`` clients with the API key ``KEY``. ``opened`` sends ``AMOUNT`` requests a second, evenly,
without waiting for answers; the share ``SHARE`` of the requests has the API key ``OTHER``. Prints ``seen`` ([key,
status, seconds, Retry-After] of each answer) and ``wall_s`` as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from dataclasses import dataclass, field

import trio


@dataclass
class Clients:
    """Keep-alive connections to one server, as many as are needed at once."""

    port: int
    body: bytes
    keys: tuple[str, str]
    share: float
    idle: deque[trio.SocketStream] = field(default_factory=deque)
    seen: list[tuple[str, int, float, float]] = field(default_factory=list)

    async def ask(self, key: str) -> None:
        begun = time.perf_counter()
        stream = self.idle.pop() if self.idle else await trio.open_tcp_stream("127.0.0.1", self.port)
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n".encode()
        head += b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(self.body)
        await stream.send_all(head + self.body)
        data = b""
        while b"\r\n\r\n" not in data:
            data += await part(stream)
        head, _, body = data.partition(b"\r\n\r\n")
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
        length = int(fields[b"content-length"])
        while len(body) < length:
            body += await part(stream)
        took = time.perf_counter() - begun
        self.seen.append((key, int(head.split(b" ", 2)[1]), took, float(fields.get(b"retry-after", 0))))
        self.idle.append(stream)

    async def closed(self, count: float, seconds: float) -> None:
        until = time.perf_counter() + seconds

        async def client() -> None:
            while time.perf_counter() < until:
                await self.ask(self.keys[0])

        async with trio.open_nursery() as nursery:
            for _ in range(int(count)):
                nursery.start_soon(client)

    async def opened(self, rate: float, seconds: float) -> None:
        begun = trio.current_time()
        async with trio.open_nursery() as nursery:
            for i in range(int(rate * seconds)):
                await trio.sleep_until(begun + i / rate)
                nursery.start_soon(self.ask, self.keys[i % round(1 / self.share) == 0])


async def part(stream: trio.SocketStream) -> bytes:
    if data := await stream.receive_some(65536):
        return bytes(data)
    raise RuntimeError("the server closed a connection")


def main() -> None:
    port, how, amount, seconds, share, key, other = sys.argv[1:]
    clients = Clients(int(port), sys.stdin.buffer.read(), (key, other), float(share))
    begun = time.perf_counter()
    trio.run(clients.closed if how == "closed" else clients.opened, float(amount), float(seconds))
    print(json.dumps({"seen": clients.seen, "wall_s": time.perf_counter() - begun}))


if __name__ == "__main__":
    main()
