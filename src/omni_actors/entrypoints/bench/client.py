"""A small HTTP/1.1 client on trio for measurements: bytes of a body are returned as soon as the socket has them.

Libraries for general use buffer, decode and pool in ways that change the measured times.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field

import h11
import trio

from omni_actors.entrypoints.commands.target import Target
from omni_actors.version import __version__

READ_SIZE = 1 << 16


class ShortReply(Exception):
    """The server closed the connection before the reply was complete."""


class Reply:
    """A response whose head has arrived. ``receive`` returns the body piece by piece, and ``b""`` at its proper end."""

    def __init__(self, connection: Connection, head: h11.Response) -> None:
        self.status: int = head.status_code
        self.headers: dict[str, str] = {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers}
        self._connection = connection

    async def receive(self) -> bytes:
        """Return the next piece of the body. Raises :class:`ShortReply` if the connection ends before the body does."""
        event = await self._connection.next_event()
        return bytes(event.data) if isinstance(event, h11.Data) else b""

    async def read(self) -> bytes:
        """Return the rest of the body."""
        parts = []
        while part := await self.receive():
            parts.append(part)
        return b"".join(parts)


class Connection:
    """One connection, with one request at a time."""

    def __init__(self, stream: trio.abc.Stream, host: str) -> None:
        self._stream = stream
        self._host = host
        self._state = h11.Connection(h11.CLIENT)
        self.used = False

    async def send(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Reply:
        """Send a whole request and wait for the head of its response."""
        fields = {
            "host": self._host,
            "user-agent": f"omni-actors-bench/{__version__}",
            "content-length": str(len(body)),
            **headers,
        }
        wire = [self._state.send(h11.Request(method=method, target=path, headers=list(fields.items())))]
        if body:
            wire.append(self._state.send(h11.Data(data=body)))
        wire.append(self._state.send(h11.EndOfMessage()))
        await self._stream.send_all(b"".join(part for part in wire if part))
        while True:
            event = await self.next_event()
            if isinstance(event, h11.Response):
                self.used = True
                return Reply(self, event)

    async def next_event(self) -> h11.Event:
        while True:
            try:
                event = self._state.next_event()
                if event is h11.NEED_DATA:
                    self._state.receive_data(bytes(await self._stream.receive_some(READ_SIZE)))
                    continue
            except h11.RemoteProtocolError as error:
                raise ShortReply(str(error)) from error
            if isinstance(event, h11.ConnectionClosed):
                raise ShortReply("the server closed the connection")
            assert not isinstance(event, type), event  # PAUSED: only after the end of a message
            return event

    def recycle(self) -> bool:
        """Prepare for another request; return ``False`` if the connection is at its end."""
        if self._state.our_state is h11.DONE and self._state.their_state is h11.DONE:
            self._state.start_next_cycle()
            return True
        return False

    async def aclose(self) -> None:
        await trio.aclose_forcefully(self._stream)


@dataclass
class Client:
    """Requests to one target over reused connections, as many at once as callers ask for."""

    target: Target
    headers: dict[str, str] = field(default_factory=dict)
    _idle: list[Connection] = field(default_factory=list)

    async def _connect(self) -> Connection:
        target = self.target
        stream: trio.abc.Stream
        if target.uds is None:
            stream = await trio.open_tcp_stream(target.host, target.port)
        else:
            stream = await trio.open_unix_socket(target.uds)
        if target.tls:
            context = ssl.create_default_context()
            stream = trio.SSLStream(stream, context, server_hostname=target.host, https_compatible=True)
        return Connection(stream, target.authority)

    async def open(self, method: str, path: str, body: bytes = b"") -> tuple[Connection, Reply]:
        """Send a request and return the connection with the response's head. Give the connection back by :meth:`done`.

        A kept connection that the server has closed meanwhile is replaced, without a trace in the result.
        """
        headers = dict(self.headers)
        if body:
            headers["content-type"] = "application/json"
        while True:
            connection = self._idle.pop() if self._idle else await self._connect()
            try:
                return connection, await connection.send(method, self.target.base + path, headers, body)
            except BaseException as error:
                await connection.aclose()
                if not (connection.used and isinstance(error, ShortReply | trio.BrokenResourceError)):
                    raise

    async def done(self, connection: Connection) -> None:
        """Keep the connection if its response was read to the end; otherwise close it."""
        if connection.recycle():
            self._idle.append(connection)
        else:
            await connection.aclose()

    async def aclose(self) -> None:
        while self._idle:
            await self._idle.pop().aclose()
