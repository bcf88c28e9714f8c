"""A link: the ordered, bidirectional channel between one producer's and one consumer's worker.

All edges between two stages share the link of their two replicas, so what is sent in order arrives in order. Payloads
up to :data:`INLINE_LIMIT` ride in the frame; larger ones lie in the producer's arena and the frame says where. The
first frame that names a slab carries its descriptor (SCM_RIGHTS), so growth needs no third party.
"""

from __future__ import annotations

import array
import os
import socket
from collections import deque
from typing import Any

import numpy as np

from omni_actors.connectors.payload import Payload
from omni_actors.connectors.shared_memory import Arena, SlabViews, Slot
from omni_actors.protocol.codec import frame, peer_reader
from omni_actors.protocol.frames import INLINE_LIMIT, Ack, Chunk, Peer, SlabRef, TensorMeta

_ALIGN = 64
_RECV = 256 << 10
_MAX_FDS = 16
_FD_SPACE = socket.CMSG_SPACE(_MAX_FDS * array.array("i").itemsize)


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
        self._out: deque[tuple[bytes, int | None]] = deque()
        self._fds: deque[int] = deque()
        self._announced: set[int] = set()

    def fileno(self) -> int:
        return self.sock.fileno()

    @property
    def pending(self) -> bool:
        """Whether there is output that the socket has not taken."""
        return bool(self._out)

    def send_chunk(self, chunk: Chunk, arena: Arena) -> None:
        ref = chunk.slab
        if ref is not None and ref.slab not in self._announced:
            self._announced.add(ref.slab)
            chunk.slab = SlabRef(ref.slab, ref.offset, True)
            # Duplicated, since the arena may close the slab before the socket has taken this frame.
            self._out.append((frame(chunk), os.dup(arena.fd(ref.slab))))
        else:
            self._out.append((frame(chunk), None))

    def send_ack(self, ack: Ack) -> None:
        self._out.append((frame(ack), None))

    def flush(self) -> None:
        """Write what the socket takes now. Raises :class:`LinkClosed`."""
        out = self._out
        while out:
            data, fd = out[0]
            if fd is None and len(out) > 1:
                data = self._join()
                fd = None
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
            if sent < len(data):
                out[0] = (data[sent:], None)
            else:
                out.popleft()

    def _join(self) -> bytes:
        """Put the frames up to the next descriptor into one write."""
        parts = []
        while self._out and self._out[0][1] is None:
            parts.append(self._out.popleft()[0])
        data = b"".join(parts)
        self._out.appendleft((data, None))
        return data

    def receive(self) -> list[Peer]:
        """The messages that have arrived. Raises :class:`LinkClosed` at end-of-file and :class:`ProtocolError`."""
        messages: list[Peer] = []
        while True:
            try:
                data, ancillary, _flags, _addr = self.sock.recvmsg(_RECV, _FD_SPACE)
            except (BlockingIOError, InterruptedError):
                return messages
            except OSError as error:
                raise LinkClosed(self.peer) from error
            for level, kind, content in ancillary:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    fds = array.array("i")
                    fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
                    self._fds.extend(fds)
            if not data:
                if messages:
                    return messages  # end-of-file shows again at the next call
                raise LinkClosed(self.peer)
            for message in self._reader.feed(data):
                if type(message) is Chunk and message.slab is not None and message.slab.fd:
                    self.views.add(message.slab.slab, self._fds.popleft())
                messages.append(message)
            if len(data) < _RECV and not ancillary:
                return messages

    def close(self) -> None:
        self.sock.close()
        for _data, fd in self._out:
            if fd is not None:
                os.close(fd)
        self._out.clear()
        while self._fds:
            os.close(self._fds.popleft())


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
