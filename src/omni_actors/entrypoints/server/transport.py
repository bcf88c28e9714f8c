"""The transport of a connection's bytes: a socket, or TLS over a socket."""

from __future__ import annotations

import socket
import ssl
import struct
from http import HTTPMethod

import trio

SEGMENT = 65_536
"""Largest number of bytes taken from the kernel in one call."""

STEPS = 16
"""Consecutive calls that find the socket ready before other tasks run: at most about 0.2 ms together."""

STEP = 12
"""Binary logarithm of the number of bytes that take as long as one call."""

_REQUESTS = tuple(f"{method} ".encode() for method in HTTPMethod)
_INITIALS = frozenset(begin[:1] for begin in _REQUESTS)
"""First bytes of HTTP requests. TLS begins with no letter: its first record has type 22."""

_CREDENTIALS = struct.Struct("iII")
"""``struct ucred``: process, user, group."""

_RESET = struct.pack("ii", 1, 0)
"""Value of ``SO_LINGER`` that closes at once and tells the peer by a reset."""


def peer_user(connection: socket.socket) -> int | None:
    """Return the user id of the peer of a unix socket, as the kernel knows it; ``None`` for other sockets."""
    if connection.family != socket.AF_UNIX:
        return None
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(data)[1])


class Stalled(Exception):
    """The peer takes no bytes of a pending send."""


class Transport:
    """A connected socket. Reading and writing first try without waiting; only a socket that is not ready is waited for.

    :meth:`receive` and :meth:`send` can be cancelled. A cancelled or failed send may have sent a part: the transport is
    ``torn`` then, and nothing more may be sent. One task may receive while another sends.
    """

    __slots__ = ("_rest", "_sent", "_stall_s", "_steps", "socket", "torn")

    says_end = False
    """Whether the peer treats an end without :meth:`end_writing` as a cut connection."""

    def __init__(self, connection: socket.socket, stall_s: float) -> None:
        self.socket = connection
        self.torn = False
        self._stall_s = stall_s
        self._steps = 0
        self._rest = b""
        self._sent = False

    @property
    def user(self) -> int | None:
        """The peer's user id over a unix socket, as the kernel knows it; ``None`` over another socket."""
        return peer_user(self.socket)

    async def receive(self) -> bytes:
        """Return bytes as soon as some have arrived; ``b""`` when the peer will send no more or is gone."""
        if self._steps >= STEPS:  # before the bytes are taken: a cancellation loses none
            self._steps = 0
            await trio.lowlevel.checkpoint()
        if self._sent:  # an answer is rarely there yet, and usually is after other tasks have run: no need to wait
            self._sent = False
            self._steps = 0
            await trio.lowlevel.checkpoint()
        while True:
            try:
                data = self.socket.recv(SEGMENT)
            except BlockingIOError:
                self._steps = 0
                await trio.lowlevel.wait_readable(self.socket)
                continue
            except OSError:
                return b""
            self._steps += 1 + (len(data) >> STEP)
            return data

    async def send(self, data: bytes) -> None:
        """Hand all bytes to the kernel.

        Raises :class:`Stalled` when the peer takes nothing for ``stall_s``, :class:`trio.BrokenResourceError` when the
        peer is gone. Not every call is a checkpoint, but at least one of :data:`STEPS` is.
        """
        if self._steps >= STEPS:
            self._steps = 0
            await trio.lowlevel.checkpoint()
        self._sent = True
        if self._rest:
            data, self._rest = self._rest + data, b""
        try:
            sent = self.socket.send(data)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self.torn = True
            raise trio.BrokenResourceError("the client is gone") from error
        self._steps += 1 + (len(data) >> STEP)
        if sent < len(data):
            self._steps = 0
            await self._send_rest(memoryview(data)[sent:])

    def send_now(self, data: bytes) -> bool:
        """Hand bytes to the kernel if the kernel has room and no task is in :meth:`send`; otherwise send nothing and
        return ``False``. If the kernel has room for a part, the rest leaves with the next send."""
        if self._rest or self.torn:
            return False
        try:
            sent = self.socket.send(data)
        except OSError:  # no room, or nobody there: the next send waits, or says so
            return False
        if sent < len(data):
            self._rest = data[sent:]
        return True

    async def _send_rest(self, rest: memoryview) -> None:
        self.torn = True
        with trio.move_on_after(self._stall_s) as patience:
            while rest:
                await trio.lowlevel.wait_writable(self.socket)
                try:
                    rest = rest[self.socket.send(rest) :]
                except BlockingIOError:
                    continue
                except OSError as error:
                    raise trio.BrokenResourceError("the client is gone") from error
                patience.deadline = trio.current_time() + self._stall_s
        if rest:
            raise Stalled
        self.torn = False

    def send_last(self, data: bytes) -> None:
        """Send last bytes without waiting; they are lost if the kernel has no room for them."""
        if not self.torn and not self._rest:
            try:
                self.socket.send(data)
            except OSError:
                pass

    def has_bytes(self) -> bool:
        """Return whether unread bytes have arrived."""
        try:
            return bool(self.socket.recv(1, socket.MSG_PEEK))
        except OSError:
            return False

    async def end_writing(self) -> None:
        """Tell the peer that no more bytes follow."""
        try:
            self.socket.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        await trio.lowlevel.checkpoint()

    def close(self, *, reset: bool = False) -> None:
        """Close the socket; with ``reset``, unsent bytes are discarded and the peer sees an error instead of an end."""
        if reset:
            try:
                self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            except OSError:
                pass
        trio.lowlevel.notify_closing(self.socket)
        self.socket.close()


class _Wire(trio.abc.Stream):
    """A connected socket, as the TLS implementation reads and writes it.

    The steps of a handshake are among the longest calls of this process (a signature takes up to 1 ms): with
    ``places``, only that many steps are computed in one pass of the loop. A task that waits for its peer holds no
    place, so clients cannot occupy places.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._stream = trio.SocketStream(trio.socket.from_stdlib_socket(connection))
        self._has_place = False
        self.places: trio.CapacityLimiter | None = None

    def leave(self) -> None:
        """Give back the place, if one is held."""
        if self._has_place and self.places is not None:
            self._has_place = False
            self.places.release()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        if self.places is not None:
            self.leave()
            await trio.lowlevel.wait_readable(self._socket)
            await self.places.acquire()
            self._has_place = True
        return await self._stream.receive_some(max_bytes)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        self.leave()
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        await self._stream.aclose()


class TlsTransport(Transport):
    """TLS over a connected socket. Bytes of ``send_last`` are lost, because encryption would have to wait for room."""

    __slots__ = ("_is_over", "_stream", "_wire")

    says_end = True

    def __init__(self, connection: socket.socket, stall_s: float, context: ssl.SSLContext) -> None:
        super().__init__(connection, stall_s)
        self._is_over = False
        self._wire = _Wire(connection)
        self._stream = trio.SSLStream(self._wire, context, server_side=True)

    async def first_byte(self) -> bytes:
        """Wait for the first byte and return it without consuming it; ``b""`` if the peer ends instead."""
        while True:
            await trio.lowlevel.wait_readable(self.socket)
            try:
                return self.socket.recv(1, socket.MSG_PEEK)
            except BlockingIOError:
                continue
            except OSError:
                return b""

    async def plain_http(self, first: bytes) -> Transport | None:
        """Return a transport without TLS if the peer speaks plain HTTP, which is known once a whole method has arrived.
        ``first`` is the first byte; no byte that may belong to TLS is consumed. Raises
        :class:`trio.BrokenResourceError` for neither HTTP nor TLS."""
        if first not in _INITIALS:
            return None
        plain = Transport(self.socket, self._stall_s)
        received = b""
        while not received.startswith(_REQUESTS):
            piece = await plain.receive()
            received += piece
            if not piece or not any(begin.startswith(received[: len(begin)]) for begin in _REQUESTS):
                raise trio.BrokenResourceError("neither TLS nor HTTP")
        return plain

    async def handshake(self, places: trio.CapacityLimiter) -> None:
        """Do the handshake, holding one of ``places`` during each computation. Raises :class:`trio.BrokenResourceError`
        on failure."""
        self._wire.places = places
        try:
            await self._stream.do_handshake()
        finally:
            self._wire.leave()
            self._wire.places = None

    async def receive(self) -> bytes:
        if self._is_over:
            return await super().receive()
        try:
            return bytes(await self._stream.receive_some(SEGMENT))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return b""

    async def send(self, data: bytes) -> None:
        self.torn = True
        for at in range(0, len(data), SEGMENT):
            with trio.move_on_after(self._stall_s) as patience:
                await self._stream.send_all(data[at : at + SEGMENT])
            if patience.cancelled_caught:
                raise Stalled
        self.torn = False

    def send_now(self, data: bytes) -> bool:
        return False

    def send_last(self, data: bytes) -> None:
        return

    async def end_writing(self) -> None:
        """End the TLS session. Afterwards :meth:`receive` may return encrypted bytes, to be discarded."""
        try:
            with trio.move_on_after(self._stall_s):
                await self._stream.unwrap()
        except trio.BrokenResourceError:
            self._is_over = True  # the peer sends more (the rest of a body, say): OpenSSL takes nothing after an end
        except (trio.ClosedResourceError, trio.BusyResourceError):
            pass
        await super().end_writing()
