"""What carries a connection's bytes: a socket, or TLS over one."""

from __future__ import annotations

import socket
import ssl
import struct
from http import HTTPMethod

import trio

SEGMENT = 65_536
"""Most bytes that are taken from the kernel at once."""

STEPS = 16
"""A task that finds its socket ready so often in a row lets others run: together at most about 0.2 ms."""

STEP = 12
"""Binary logarithm of how many bytes take as long as a call."""

_REQUESTS = tuple(f"{method} ".encode() for method in HTTPMethod)
_INITIALS = frozenset(begin[:1] for begin in _REQUESTS)
"""How HTTP begins. TLS begins with no letter: its first record is one of type 22."""

_CREDENTIALS = struct.Struct("iII")
"""struct ucred: process, user, group."""

_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER: close at once, and tell the peer by a reset."""


def peer_user(connection: socket.socket) -> int | None:
    """Return the number of the user at the other end of a unix socket, as the kernel knows it; ``None`` of others."""
    if connection.family != socket.AF_UNIX:
        return None
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(data)[1])


class Stalled(Exception):
    """The peer takes nothing of what waits for it."""


class Transport:
    """A connected socket. Reading and writing first try without waiting; only a socket that is not ready is waited for.

    :meth:`receive` and :meth:`send` can be cancelled. A cancelled (or failed) send may have sent a part: the transport
    is ``torn`` then, and nothing more may be sent. One task may receive while another sends.
    """

    __slots__ = ("_rest", "_sent", "_stall_s", "_steps", "socket", "torn")

    says_end = False
    """Whether the peer takes an end that was not said by :meth:`end_writing` for that of a cut connection."""

    def __init__(self, connection: socket.socket, stall_s: float) -> None:
        self.socket = connection
        self.torn = False
        self._stall_s = stall_s
        self._steps = 0
        self._rest = b""
        self._sent = False

    @property
    def user(self) -> int | None:
        """Who has connected, as the kernel knows it: a user's number over a unix socket, ``None`` over another one."""
        return peer_user(self.socket)

    async def receive(self) -> bytes:
        """What has come, as soon as something has; ``b""`` once the peer will send no more, or is gone."""
        if self._steps >= STEPS:  # before the bytes are taken: a cancellation loses none
            self._steps = 0
            await trio.lowlevel.checkpoint()
        if self._sent:  # what answers it is seldom there yet, and is when others have had their turn: no need to wait
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
        """Hand all of it to the kernel.

        Raises :class:`Stalled` when the peer takes nothing for ``stall_s``, :class:`trio.BrokenResourceError` when it
        is gone. Not a checkpoint every time, but at least every :data:`STEPS` times.
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
        """Hand it to the kernel if that has room and nobody is in :meth:`send`; otherwise nothing of it is sent, and it
        is ``False``. Where there is room for a part, the rest leaves with what is sent next."""
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
        """A last word to a peer that nobody waits for: it is lost where there is no room for it."""
        if not self.torn and not self._rest:
            try:
                self.socket.send(data)
            except OSError:
                pass

    def has_bytes(self) -> bool:
        """Whether something has come that nobody has read."""
        try:
            return bool(self.socket.recv(1, socket.MSG_PEEK))
        except OSError:
            return False

    async def end_writing(self) -> None:
        """The peer sees the end behind what it was sent."""
        try:
            self.socket.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        await trio.lowlevel.checkpoint()

    def close(self, *, reset: bool = False) -> None:
        """``reset``: what waits for the peer is thrown away, and it sees an error instead of an end."""
        if reset:
            try:
                self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            except OSError:
                pass
        trio.lowlevel.notify_closing(self.socket)
        self.socket.close()


class _Wire(trio.abc.Stream):
    """A connected socket as TLS reads and writes it.

    A handshake's steps are some of the longest calls there are here (a signature takes up to 1 ms): with ``places``
    only so many are computed in one pass of the loop. Who waits for its peer has no place, so that none can take one.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._stream = trio.SocketStream(trio.socket.from_stdlib_socket(connection))
        self._has_place = False
        self.places: trio.CapacityLimiter | None = None

    def leave(self) -> None:
        """Give back the place that it may have."""
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
    """TLS over a connected socket. Its last word is lost: encryption needs to wait for room."""

    __slots__ = ("_is_over", "_stream", "_wire")

    says_end = True

    def __init__(self, connection: socket.socket, stall_s: float, context: ssl.SSLContext) -> None:
        super().__init__(connection, stall_s)
        self._is_over = False
        self._wire = _Wire(connection)
        self._stream = trio.SSLStream(self._wire, context, server_side=True)

    async def first_byte(self) -> bytes:
        """As soon as it is there, where it stays; ``b""`` if the peer ends the connection instead."""
        while True:
            await trio.lowlevel.wait_readable(self.socket)
            try:
                return self.socket.recv(1, socket.MSG_PEEK)
            except BlockingIOError:
                continue
            except OSError:
                return b""

    async def plain_http(self, first: bytes) -> Transport | None:
        """A transport without TLS, if the peer speaks HTTP without it: it has said a method then. ``first`` is its
        first byte; nothing that may be TLS is taken. Raises :class:`trio.BrokenResourceError` for what is neither."""
        if first not in _INITIALS:
            return None
        plain = Transport(self.socket, self._stall_s)
        said = b""
        while not said.startswith(_REQUESTS):
            piece = await plain.receive()
            said += piece
            if not piece or not any(begin.startswith(said[: len(begin)]) for begin in _REQUESTS):
                raise trio.BrokenResourceError("neither TLS nor HTTP")
        return plain

    async def handshake(self, places: trio.CapacityLimiter) -> None:
        """One of ``places`` is held while it computes. Raises :class:`trio.BrokenResourceError` when it fails."""
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
        """After it :meth:`receive` may give what is still encrypted, to be thrown away."""
        try:
            with trio.move_on_after(self._stall_s):
                await self._stream.unwrap()
        except trio.BrokenResourceError:
            self._is_over = True  # the peer says more (the rest of a body, say): OpenSSL takes nothing behind an end
        except (trio.ClosedResourceError, trio.BusyResourceError):
            pass
        await super().end_writing()
