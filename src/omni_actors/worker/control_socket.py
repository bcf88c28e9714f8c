"""The worker's end of its control channel to the serving process."""

from __future__ import annotations

import socket
from collections import deque

import msgspec

from omni_actors.connectors.descriptors import Receiver
from omni_actors.protocol.codec import ProtocolError, down_reader, frame, told_frame
from omni_actors.protocol.frames import Down

_MAX_UNSENT = 8 << 20


class Hangup(Exception):
    """The serving process is gone."""


class ControlSocket:
    """A non-blocking socket for frames in both directions, with the file descriptors that ride on incoming frames."""

    def __init__(self, sock: socket.socket, *, check: bool = True) -> None:
        """Take the connected socket ``sock``. ``check`` validates each outgoing message as the reader will; messages
        that were checked before need no check."""
        sock.setblocking(False)
        self._frame = told_frame if check else frame
        self._sock = sock
        self._incoming = Receiver(sock)
        self._reader = down_reader()
        self._fds: deque[int] = deque()
        self._unsent = bytearray()
        self.put = 0
        """Bytes queued so far."""
        self.writable = True
        """Whether the socket took everything so far; if not, flush again when the socket can be written."""

    def fileno(self) -> int:
        return self._sock.fileno()

    @property
    def full(self) -> bool:
        """Whether so many bytes wait for the serving process that nothing should be added."""
        return len(self._unsent) >= _MAX_UNSENT

    @property
    def written(self) -> int:
        """Queued bytes that the socket has taken: the serving process gets these bytes even if this process ends
        now."""
        return self.put - len(self._unsent)

    def receive(self) -> list[Down]:
        """Return the messages that have arrived. Raises :class:`Hangup` and :class:`ProtocolError`."""
        messages: list[Down] = []
        while True:
            try:
                data, fds, more = self._incoming.receive()
            except (BlockingIOError, InterruptedError):
                return messages
            except OSError as error:
                raise Hangup from error
            self._fds.extend(fds)
            if not data:
                raise Hangup
            messages += self._reader.feed(data)
            if not more:
                return messages

    def take_fd(self) -> socket.socket:
        """Return the descriptor that came with a Wire frame, as a socket. Raises :class:`ProtocolError` if there is
        none."""
        if not self._fds:
            raise ProtocolError("a link without its descriptor")
        return socket.socket(fileno=self._fds.popleft())

    def send(self, message: msgspec.Struct) -> None:
        """Queue a frame for :meth:`flush`. Raises as :func:`~omni_actors.protocol.codec.told_frame` does."""
        data = self._frame(message)
        self._unsent += data
        self.put += len(data)

    def flush(self) -> None:
        """Write as much as the socket takes now. Raises :class:`Hangup`."""
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
        """Write all queued bytes, waiting at most ``patience_s`` seconds for room. Raises :class:`Hangup`."""
        self._sock.settimeout(patience_s)
        try:
            self._sock.sendall(self._unsent)
        except OSError as error:
            raise Hangup from error
        finally:
            self._unsent.clear()
            self._sock.setblocking(False)
