"""The worker's end of its control channel."""

from __future__ import annotations

import array
import socket
from collections import deque

import msgspec

from omni_actors.protocol.codec import ProtocolError, down_reader, frame
from omni_actors.protocol.frames import Down

_RECV = 256 << 10
_FD_SPACE = socket.CMSG_SPACE(16 * array.array("i").itemsize)
_MAX_UNSENT = 8 << 20


class Hangup(Exception):
    """The serving process is gone."""


class Control:
    """Frames in (with the descriptors that ride on them), frames out. Nothing here waits."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._reader = down_reader()
        self._fds: deque[int] = deque()
        self._unsent = bytearray()
        self.writable = True
        """Whether the socket took everything so far; if not, flush again when it can be written."""

    def fileno(self) -> int:
        return self._sock.fileno()

    @property
    def full(self) -> bool:
        """Whether so much waits for the serving process that nothing should be added."""
        return len(self._unsent) >= _MAX_UNSENT

    def receive(self) -> list[Down]:
        """The messages that have arrived. Raises :class:`Hangup` and :class:`ProtocolError`."""
        messages: list[Down] = []
        while True:
            try:
                data, ancillary, _flags, _addr = self._sock.recvmsg(_RECV, _FD_SPACE, socket.MSG_CMSG_CLOEXEC)
            except (BlockingIOError, InterruptedError):
                return messages
            except OSError as error:
                raise Hangup from error
            for level, kind, content in ancillary:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    fds = array.array("i")
                    fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
                    self._fds.extend(fds)
            if not data:
                raise Hangup
            messages += self._reader.feed(data)
            if len(data) < _RECV and not ancillary:
                return messages

    def take_fd(self) -> socket.socket:
        """The descriptor that came with a Wire frame, as a socket. Raises :class:`ProtocolError` if none did."""
        if not self._fds:
            raise ProtocolError("a link without its descriptor")
        return socket.socket(fileno=self._fds.popleft())

    def send(self, message: msgspec.Struct) -> None:
        """Queue a frame for :meth:`flush`. Raises what :func:`~omni_actors.protocol.codec.frame` does."""
        self._unsent += frame(message)

    def flush(self) -> None:
        """Write what the socket takes now. Raises :class:`Hangup`."""
        if not self._unsent:
            return
        try:
            del self._unsent[: self._sock.send(self._unsent)]
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            raise Hangup from error
        self.writable = not self._unsent

    def drain(self, patience_s: float) -> None:
        """Write all that is queued, waiting for room at most so many seconds. Raises :class:`Hangup`."""
        self._sock.settimeout(patience_s)
        try:
            self._sock.sendall(self._unsent)
        except OSError as error:
            raise Hangup from error
        finally:
            self._unsent.clear()
            self._sock.setblocking(False)
