"""One WebSocket (RFC 6455). The websockets library does the framing and the close handshake, without I/O."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Literal, Protocol

import trio
from websockets.frames import Frame, Opcode
from websockets.protocol import State

from omni_actors.entrypoints.server.framing import MessageProtocol, close_reason, handshake_response, message_frame
from omni_actors.entrypoints.server.http1 import Exchange
from omni_actors.entrypoints.server.limits import Limits
from omni_actors.entrypoints.server.parser import Headers
from omni_actors.entrypoints.server.transport import Transport

SLICE = 4096
"""Bytes parsed in one go: a whole segment of tiny frames would take tens of milliseconds."""


class SocketClosed(Exception):
    """The WebSocket is closed, with ``code``; 1006 says that the client left without a code."""

    def __init__(self, code: int, reason: str = "") -> None:
        super().__init__(f"closed with {code} {reason}".rstrip())
        self.code = code
        self.reason = reason


class WebSocketServer(Protocol):
    """The part of a server that a WebSocket uses."""

    @property
    def limits(self) -> Limits: ...

    @property
    def draining(self) -> bool: ...

    def hold(self, socket: WebSocket, size: int) -> None: ...


class WebSocketConnection(Protocol):
    """The part of a connection that a WebSocket uses."""

    @property
    def server(self) -> WebSocketServer: ...

    @property
    def transport(self) -> Transport: ...

    async def send(self, data: bytes) -> None: ...

    def end(self, reason: Literal["close_timeout", "ping_timeout"]) -> None: ...

    def end_after(self, seconds: float, reason: Literal["client_left", "close_timeout"]) -> None: ...


class WebSocket:
    """A request for a WebSocket, and after :meth:`accept` the WebSocket.

    One task may receive while others send. Pings are answered while a task waits in :meth:`receive`. When the client
    leaves, a receiver still gets all earlier messages; if no task receives, the handler is cancelled at once. The
    handler is also cancelled when the client stops reading.
    """

    def __init__(self, connection: WebSocketConnection, exchange: Exchange, early: bytes) -> None:
        """Prepare the handshake; ``early`` are the bytes that came after the request. Raises :class:`BadRequest` for an
        invalid handshake."""
        self.path = exchange.path
        self.target = exchange.target
        self.query = exchange.query
        self.headers = exchange.headers
        self.client = exchange.client
        self.server = exchange.server
        self.scheme = "wss" if exchange.scheme == "https" else "ws"
        self.accepted = False
        self._connection = connection
        self._exchange = exchange
        self._limits = connection.server.limits
        self._unparsed = early
        self._sending = False
        self._turn = trio.lowlevel.ParkingLot()
        self._reading = False
        self._last_received = trio.current_time()
        self._pinged = False
        self._writes: list[bytes] = []
        self._closed: SocketClosed | None = None
        self._ended: SocketClosed | None = None
        self._busy = 0
        self._draining = False
        self._nursery: trio.Nursery | None = None
        self._protocol = MessageProtocol(self._limits.message_bytes)
        self._messages = self._protocol.messages
        self._response = handshake_response(exchange)
        self.held = 0
        """Bytes of the unfinished message."""

    @property
    def user(self) -> int | None:
        """The client's user id, over a unix socket."""
        return self._exchange.user

    @property
    def subprotocols(self) -> list[str]:
        """The subprotocols that the client offers, in the client's order."""
        offers = [value for name, value in self.headers if name == b"sec-websocket-protocol"]
        return [offer.strip() for line in offers for offer in line.decode("latin-1").split(",") if offer.strip()]

    async def accept(self, headers: Headers | None = None, subprotocol: str | None = None) -> None:
        response = self._response
        more = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers or ()]
        if subprotocol is not None:
            more.append(("Sec-WebSocket-Protocol", subprotocol))
        for name, value in more:
            if "\n" in name + value or "\r" in name + value:
                raise ValueError("a header with a line break in it")
            response.headers[name] = value
        self.accepted = self._exchange.started = self._exchange.finished = True
        self._writes.insert(0, response.serialize())  # before answers to early frames
        if self._connection.server.draining:
            self.drain()
        await self._flush()

    async def reject(self, status: int, headers: Headers, body: bytes = b"") -> None:
        """Answer with an HTTP response instead."""
        self._exchange.keep_alive = False
        await self._exchange.respond(status, headers, body)

    async def receive(self) -> str | bytes:
        """Return the next message. Raises :class:`SocketClosed`."""
        self._reading = True
        try:
            while not self._messages:
                if self._closed is not None:
                    raise self._closed
                if self._ended is not None:
                    await self._finish()
                else:
                    await self._read()
            return self._messages.popleft()
        finally:
            self._reading = False

    async def send(self, message: str | bytes) -> None:
        """Send a message. Returns when the kernel has taken it, at the speed of the client's reading. Raises
        :class:`SocketClosed`."""
        if self._closed is not None:
            await trio.lowlevel.checkpoint()
            raise self._closed
        if isinstance(message, str):
            self._writes.append(message_frame(Opcode.TEXT, message.encode()))
        else:
            self._writes.append(message_frame(Opcode.BINARY, message))
        await self._flush()

    async def close(self, code: int = 1000, reason: str = "") -> None:
        """Close the WebSocket: nothing is received or sent afterwards. The client's answer is waited for once the
        handler has returned."""
        if self._ended is not None:
            await self._finish()
        elif self._closed is None:
            self._end(code, reason)
            await self._flush()

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Return a block that a shutdown lets finish, within its grace, before it closes this WebSocket with 1001."""
        self._busy += 1
        try:
            yield
        finally:
            self._busy -= 1
            if self._draining and not self._busy:
                self._go_away()

    # --- used by the connection

    async def serve(self, handler: Callable[[WebSocket], Awaitable[None]]) -> None:
        """Run the handler, and raise its exceptions except :class:`SocketClosed`."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            if self._limits.ping_s:
                nursery.start_soon(self._keep_alive)
            try:
                await handler(self)
            except* SocketClosed:
                pass
            self._nursery = None
            nursery.cancel_scope.cancel()

    async def close_and_wait(self, code: int) -> None:
        """Close with ``code`` unless the WebSocket is closed already, and wait until the client has closed as well."""
        if not self.accepted:
            return
        with trio.move_on_after(self._limits.close_s) as patience:
            await self.close(code)
            await self._flush()
            while not self._protocol.eof_sent:  # that is when both sides have closed
                await self._read()
        if patience.cancelled_caught:
            self._connection.end("close_timeout")

    @property
    def both_closed(self) -> bool:
        """Whether the close handshake is complete: no bytes should follow."""
        return self._protocol.close_rcvd is not None

    def on_disconnect(self) -> bool:
        """Handle a client that has left; return whether a task reads, and will reach the end of the client's bytes by
        itself."""
        if self._closed is not None:
            return True
        if self._reading or self._messages or self._unparsed or self._ended is not None:
            self._connection.end_after(self._limits.close_s, "client_left")
            return True
        return False

    def drain(self) -> None:
        self._draining = True
        if not self._busy:
            self._go_away()

    def drop(self) -> None:
        """Close, and drop the unfinished message."""
        closed = SocketClosed(1013, "Too many bytes of unfinished messages.")
        self._protocol.fail(closed.code, closed.reason)
        self._writes += self._protocol.data_to_send()
        self._closed = self._closed or closed
        if self._nursery is not None:
            self._nursery.start_soon(self._flush)
        self._connection.end_after(self._limits.close_s, "close_timeout")

    def send_close(self) -> None:
        """Send a close frame without waiting."""
        if self.accepted and self._closed is None:
            self._end(1001, "The server is shutting down.")
            self._post()

    # --- internal

    async def _read(self) -> None:
        """Process the next bytes, and send the protocol's own answers."""
        if not self._unparsed:
            self._unparsed = await self._connection.transport.receive()
            self._last_received = trio.current_time()
            self._pinged = False
        protocol = self._protocol
        if self._unparsed:
            if len(self._unparsed) <= SLICE:
                piece, self._unparsed = self._unparsed, b""
            else:
                piece, self._unparsed = self._unparsed[:SLICE], self._unparsed[SLICE:]
            protocol.receive_data(piece)
            protocol.events.clear()  # the messages are made of them already
            if (held := protocol.held) != self.held:
                self._connection.server.hold(self, held)
        else:
            protocol.receive_eof()
        if protocol.state is not State.OPEN and self._closed is None:
            closed = protocol.close_rcvd or protocol.close_sent
            self._ended = SocketClosed(1006) if closed is None else SocketClosed(closed.code, closed.reason)
            if self._messages:  # they may be answered before the answer to the close
                return
            await self._finish()
            return
        if protocol.writes:
            self._writes += protocol.data_to_send()
            await self._flush()
        if self._unparsed:
            await trio.lowlevel.checkpoint()

    async def _finish(self) -> None:
        """Finish after the client has closed or broken the protocol, once all earlier messages have been received."""
        self._closed = self._ended
        self._writes += self._protocol.data_to_send()
        await self._flush()

    def _end(self, code: int, reason: str) -> None:
        """Close from this side."""
        self._closed = SocketClosed(code, reason)
        if self._ended is None:
            self._protocol.send_close(code, close_reason(reason))
        self._writes += self._protocol.data_to_send()

    def _go_away(self) -> None:
        if self.accepted and self._closed is None:
            self._end(1001, "The server is shutting down.")
            if self._nursery is not None:
                self._nursery.start_soon(self._flush)
            self._connection.end_after(self._limits.close_s, "close_timeout")

    async def _flush(self) -> None:
        """Send queued frames, whole and in order, and none before the handshake's response."""
        while self._sending:  # returns when this task's frames have left, too
            await self._turn.park()
        if not self._writes or not self.accepted:
            return
        self._sending = True
        try:
            while self._writes:
                data = self._writes[0] if len(self._writes) == 1 else b"".join(self._writes)
                self._writes.clear()
                if data:  # websockets marks the end by an empty write
                    await self._connection.send(data)
        finally:
            self._sending = False
            if self._turn:
                self._turn.unpark_all()

    def _post(self) -> None:
        """Send queued frames without waiting. If another task is sending, that task sends them too."""
        if not self._sending:
            self._connection.transport.send_last(b"".join(self._writes))
            self._writes.clear()

    async def _keep_alive(self) -> None:
        """Ping after ``ping_s`` of silence and close after as much silence again. Only a handler that receives can
        notice the answer."""
        silence = self._limits.ping_s
        while True:
            await trio.sleep_until(self._last_received + silence)
            now = trio.current_time()
            if now < self._last_received + silence:
                continue
            if self._closed is not None:
                return
            if not self.accepted:
                self._last_received = now
                continue
            if self._pinged and self._reading:
                self._end(1011, "No answer to a ping.")
                self._post()
                self._connection.end("ping_timeout")
                return
            self._last_received = now
            self._pinged = True
            self._writes.append(Frame(Opcode.PING, b"").serialize(mask=False))
            await self._flush()
