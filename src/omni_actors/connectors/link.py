"""A link: the ordered, bidirectional channel between one producer's and one consumer's worker.

All edges between two stages share the link of their two replicas, so what is sent in order arrives in order. Payloads
up to :data:`INLINE_LIMIT` ride in the frame; larger ones lie in the producer's arena and the frame says where. The
first frame that names a slab carries its descriptor (SCM_RIGHTS), so growth needs no third party.
"""

from __future__ import annotations

import os
import socket
from collections import deque
from typing import Any

import numpy as np

from omni_actors.connectors.descriptors import receive
from omni_actors.connectors.payload import Payload
from omni_actors.connectors.shared_memory import Arena, SlabViews, Slot
from omni_actors.protocol.codec import ProtocolError, frame, peer_reader
from omni_actors.protocol.frames import INLINE_LIMIT, MAX_PEER_FRAME, Ack, Chunk, Forget, Peer, SlabRef, TensorMeta

_ALIGN = 64
_WRITE = 256 << 10
"""Small frames are joined to writes of up to so many bytes."""


class LinkClosed(Exception):
    """The other end is gone."""


class Link:
    """One end. Non-blocking: ``send_*`` queue, ``flush`` writes what the socket takes, ``receive`` reads what came."""

    def __init__(self, id: int, peer: str, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.id = id
        self.peer = peer
        self.sock = sock
        self.views = SlabViews()
        self.watched = False
        """For the owner's loop: whether it waits for the socket to become writable."""
        self._reader = peer_reader()
        self.put = 0
        """Bytes that were queued so far."""
        self.written = 0
        """Bytes of them that the socket has taken: the other end gets them, whatever becomes of this process."""
        self._out: deque[tuple[bytes | memoryview, int | None]] = deque()
        self._muted = False
        self._fds: deque[int] = deque()
        self._announced: set[int] = set()

    def fileno(self) -> int:
        return self.sock.fileno()

    @property
    def pending(self) -> bool:
        """Whether there is output that the socket has not taken."""
        return bool(self._out)

    def send_chunk(self, chunk: Chunk, arena: Arena) -> None:
        """Queue a chunk. Raises :class:`FrameTooLarge`, and what encoding raises; nothing is queued then."""
        ref = chunk.slab
        if ref is None or ref.slab in self._announced:
            self._send(frame(chunk, MAX_PEER_FRAME))
            return
        chunk.slab = SlabRef(ref.slab, ref.offset, True)
        data = frame(chunk, MAX_PEER_FRAME)
        if not self._muted:
            self._announced.add(ref.slab)
            # Duplicated, since the arena may close the slab before the socket has taken this frame.
            self._send(data, os.dup(arena.fd(ref.slab)))

    def send_ack(self, ack: Ack) -> None:
        self._send(frame(ack, MAX_PEER_FRAME))

    def forget(self, slabs: list[int]) -> bool:
        """Tell the other end of slabs that are closed, if it knows them; whether anything was queued."""
        known = tuple(slab for slab in slabs if slab in self._announced)
        if known:
            self._announced.difference_update(known)
            self._send(frame(Forget(known), MAX_PEER_FRAME))
        return bool(known)

    def mute(self) -> None:
        """The other end takes no more; what it has said before can still be received."""
        self._muted = True
        self._drop_output()
        self.written = self.put

    def _send(self, data: bytes, fd: int | None = None) -> None:
        if not self._muted:
            self.put += len(data)
            self._out.append((data, fd))

    def flush(self) -> None:
        """Write what the socket takes now. Raises :class:`LinkClosed`."""
        out = self._out
        while out:
            data, fd = out[0]
            if fd is None and len(out) > 1:
                data = self._join()
            try:
                if fd is None:
                    sent = self.sock.send(data)
                else:
                    sent = socket.send_fds(self.sock, [data], [fd])
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
        """Put small frames up to the next descriptor into one write."""
        out = self._out
        parts: list[bytes | memoryview] = []
        size = 0
        while out and out[0][1] is None and (not parts or size + len(out[0][0]) <= _WRITE):
            size += len(out[0][0])
            parts.append(out.popleft()[0])
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        out.appendleft((data, None))
        return data

    def receive(self) -> list[Peer]:
        """The messages that have arrived. Raises :class:`LinkClosed` at end-of-file and :class:`ProtocolError`."""
        messages: list[Peer] = []
        while True:
            try:
                data, fds, more = receive(self.sock)
            except (BlockingIOError, InterruptedError):
                return messages
            except OSError as error:
                raise LinkClosed(self.peer) from error
            self._fds.extend(fds)
            if not data:
                if messages:
                    return messages  # end-of-file shows again at the next call
                raise LinkClosed(self.peer)
            for message in self._reader.feed(data):
                if type(message) is Chunk and message.slab is not None and message.slab.fd:
                    if not self._fds:
                        raise ProtocolError("a slab was announced without its descriptor")
                    self.views.add(message.slab.slab, self._fds.popleft())
                messages.append(message)
            if not more:
                return messages

    def close(self) -> None:
        self.sock.close()
        self._drop_output()
        while self._fds:
            os.close(self._fds.popleft())

    def _drop_output(self) -> None:
        for _data, fd in self._out:
            if fd is not None:
                os.close(fd)
        self._out.clear()


def layout(payload: Payload) -> tuple[tuple[TensorMeta, ...], int]:
    """Where each tensor goes in the payload's bytes, and how many bytes that is."""
    metas = []
    offset = 0
    for name, tensor in payload.tensors.items():
        dtype = payload.dtypes.get(name) or tensor.dtype.name
        metas.append(TensorMeta(name, dtype, tensor.shape, offset, tensor.nbytes))
        offset += -(-tensor.nbytes // _ALIGN) * _ALIGN
    return tuple(metas), offset


def write(payload: Payload, metas: tuple[TensorMeta, ...], buffer: memoryview) -> None:
    """The one copy: the payload's tensors into ``buffer``."""
    for meta in metas:
        tensor = payload.tensors[meta.name]
        target = np.frombuffer(buffer, dtype=tensor.dtype, count=tensor.size, offset=meta.offset)
        np.copyto(target.reshape(tensor.shape), tensor)


def pack(payload: Payload, arena: Arena, readers: int) -> tuple[tuple[TensorMeta, ...], bytes | None, Slot | None]:
    """Put a payload where its ``readers`` consumers can read it: ``(metas, inline bytes or None, slot or None)``."""
    if not payload.tensors:
        return (), None, None
    metas, nbytes = layout(payload)
    if nbytes <= INLINE_LIMIT:
        data = bytearray(nbytes)
        write(payload, metas, memoryview(data))
        return metas, bytes(data), None
    slot = arena.allocate(nbytes)
    slot.readers = readers
    write(payload, metas, slot.view(nbytes))
    return metas, None, slot


def unpack(chunk: Chunk, views: SlabViews) -> Payload | None:
    """The payload of a chunk as read-only views; ``None`` for a bare end."""
    if not chunk.kind:
        return None
    if not chunk.tensors:
        return Payload(chunk.kind, chunk.meta)
    if chunk.slab is not None:
        last = chunk.tensors[-1]
        buffer = views.view(chunk.slab.slab, chunk.slab.offset, last.offset + last.nbytes)
    else:
        buffer = memoryview(chunk.data or b"")
    tensors: dict[str, np.ndarray[Any, Any]] = {}
    dtypes: dict[str, str] = {}
    for meta in chunk.tensors:
        dtype = np.dtype("uint16") if meta.dtype == "bfloat16" else np.dtype(meta.dtype)
        if meta.dtype == "bfloat16":
            dtypes[meta.name] = "bfloat16"
        if dtype.hasobject or meta.offset + meta.nbytes > len(buffer):
            raise ValueError(f"tensor {meta.name!r} does not fit its payload")
        flat = np.frombuffer(buffer, dtype=dtype, count=meta.nbytes // dtype.itemsize, offset=meta.offset)
        tensors[meta.name] = flat.reshape(meta.shape)
    return Payload(chunk.kind, chunk.meta, tensors, dtypes)
