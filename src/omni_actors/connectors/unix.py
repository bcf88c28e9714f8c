"""A link within one machine: frames on a Unix socket, large payloads in shared memory.

The first frame that names a slab carries the slab's descriptor (SCM_RIGHTS), so an arena grows without a third party.
"""

from __future__ import annotations

import os
import socket
from collections import deque

from omni_actors.connectors.descriptors import Receiver
from omni_actors.connectors.link import Link, LinkClosed
from omni_actors.connectors.packing import size_of, unpack
from omni_actors.connectors.payload import Payload
from omni_actors.connectors.shared_memory import SlabViews, Slot
from omni_actors.protocol.codec import ProtocolError, frame, peer_reader
from omni_actors.protocol.frames import MAX_PEER_FRAME, Ack, Chunk, Forget, Probe, Reach, SlabRef

_WRITE = 256 << 10
"""Small frames are joined to writes of up to this number of bytes."""


class UnixLink(Link):
    """A link over a connected Unix socket. Written frames arrive, whatever becomes of this process, and memory lent by
    the other end stays mapped when the other end is gone."""

    def __init__(self, id: int, peer: str, sock: socket.socket) -> None:
        super().__init__(id, peer)
        sock.setblocking(False)
        self._sock = sock
        self._incoming = Receiver(sock)
        self._views = SlabViews()
        self._reader = peer_reader()
        self._out: deque[tuple[bytes | memoryview, int | None]] = deque()
        self._muted = False
        self._fds: deque[int] = deque()
        self._announced: set[int] = set()

    def fileno(self) -> int:
        return self._sock.fileno()

    @property
    def pending(self) -> bool:
        return bool(self._out)

    def send_chunk(self, chunk: Chunk, slot: Slot | None) -> None:
        if slot is None:
            self._send(frame(chunk, MAX_PEER_FRAME))
            return
        slab = slot.slab
        known = slab.id in self._announced
        chunk.slab = SlabRef(slab.id, slot.offset, not known)
        data = frame(chunk, MAX_PEER_FRAME)
        if known:
            self._send(data)
        elif not self._muted:
            self._announced.add(slab.id)
            # Duplicated: the arena may close the slab before the socket has taken this frame.
            self._send(data, os.dup(slab.fd))

    def send_ack(self, ack: Ack) -> None:
        self._send(frame(ack, MAX_PEER_FRAME))

    def forget(self, slabs: list[int]) -> bool:
        known = tuple(slab for slab in slabs if slab in self._announced)
        if known:
            self._announced.difference_update(known)
            self._send(frame(Forget(known), MAX_PEER_FRAME))
        return bool(known)

    def mute(self) -> None:
        self._muted = True
        self._drop_output()
        self.written = self.put

    def _send(self, data: bytes, fd: int | None = None) -> None:
        if not self._muted:
            self.put += len(data)
            self._out.append((data, fd))

    def flush(self) -> None:
        out = self._out
        while out:
            data, fd = out[0]
            if fd is None and len(out) > 1:
                data = self._join()
            try:
                if fd is None:
                    sent = self._sock.send(data)
                else:
                    sent = socket.send_fds(self._sock, [data], [fd])
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                raise LinkClosed(self.peer) from error
            if fd is not None:
                os.close(fd)
            self.written += sent
            if sent < len(data):
                out[0] = (memoryview(data)[sent:], None)
            else:
                out.popleft()

    def _join(self) -> bytes | memoryview:
        """Join small frames up to the next descriptor to one write."""
        out = self._out
        parts: list[bytes | memoryview] = []
        size = 0
        while out and out[0][1] is None and (not parts or size + len(out[0][0]) <= _WRITE):
            size += len(out[0][0])
            parts.append(out.popleft()[0])
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        out.appendleft((data, None))
        return data

    def receive(self) -> list[Chunk | Ack]:
        messages: list[Chunk | Ack] = []
        while True:
            try:
                data, fds, more = self._incoming.receive()
            except (BlockingIOError, InterruptedError):
                return messages
            except OSError as error:  # the other process ended with unread input
                if messages:
                    return messages  # the end shows again at the next call
                raise LinkClosed(self.peer) from error
            self._fds.extend(fds)
            if not data:
                if messages:
                    return messages
                raise LinkClosed(self.peer)
            for message in self._reader.feed(data):
                if isinstance(message, Chunk):
                    if message.slab is not None and message.slab.fd:
                        self._announce(message.slab)
                    messages.append(message)
                elif isinstance(message, Ack):
                    messages.append(message)
                else:
                    self._beside(message)
            if not more:
                return messages

    def _announce(self, slab: SlabRef) -> None:
        if not self._fds:
            raise ProtocolError("a slab was announced without its descriptor")
        self._views.add(slab.slab, self._fds.popleft())

    def _beside(self, message: Forget | Probe | Reach) -> None:
        """Handle a message that concerns no request."""
        if isinstance(message, Forget):
            self._views.forget(message.slabs)
        elif isinstance(message, Probe):
            self._send(frame(Reach(False), MAX_PEER_FRAME))  # this end has no device to open it on

    def payload(self, chunk: Chunk) -> Payload | None:
        if chunk.slab is None or not chunk.tensors:
            return unpack(chunk, memoryview(chunk.data or b""))
        return unpack(chunk, self._views.view(chunk.slab.slab, chunk.slab.offset, size_of(chunk.tensors)))

    def close(self) -> None:
        self.mute()
        self._sock.close()
        while self._fds:
            os.close(self._fds.popleft())

    def _drop_output(self) -> None:
        for _data, fd in self._out:
            if fd is not None:
                os.close(fd)
        self._out.clear()
