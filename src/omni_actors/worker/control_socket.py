"""The worker's end of its control channel."""

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
    """Frames in (with the descriptors that ride on them), frames out. Nothing here waits."""

    def __init__(self, sock: socket.socket, *, check: bool = True) -> None:
        """``check`` says to look at what is sent as its reader will: not needed where it was looked at before."""
        sock.setblocking(False)
        self._frame = told_frame if check else frame
        self._sock = sock
        self._incoming = Receiver(sock)
        self._reader = down_reader()
        self._fds: deque[int] = deque()
        self._unsent = bytearray()
        self.put = 0
        """Bytes that were queued so far."""
        self.writable = True
        """Whether the socket took everything so far; if not, flush again when it can be written."""

    def fileno(self) -> int:
        return self._sock.fileno()

    @property
    def full(self) -> bool:
        """Whether so much waits for the serving process that nothing should be added."""
        return len(self._unsent) >= _MAX_UNSENT

    @property
    def written(self) -> int:
        """Bytes of those queued that the socket has taken: the serving process gets them even if this one ends now."""
        return self.put - len(self._unsent)

    def receive(self) -> list[Down]:
        """The messages that have arrived. Raises :class:`Hangup` and :class:`ProtocolError`."""
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
        """The descriptor that came with a Wire frame, as a socket. Raises :class:`ProtocolError` if none did."""
        if not self._fds:
            raise ProtocolError("a link without its descriptor")
        return socket.socket(fileno=self._fds.popleft())

    def send(self, message: msgspec.Struct) -> None:
        """Queue a frame for :meth:`flush`. Raises what :func:`~omni_actors.protocol.codec.told_frame` does."""
        data = self._frame(message)
        self._unsent += data
        self.put += len(data)

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
