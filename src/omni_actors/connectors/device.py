"""A link within one machine on which tensors stay on the device: a handle travels, and the consumer opens the handle.

Everything else is a :class:`~omni_actors.connectors.unix.UnixLink`: frames on a socket, and host payloads in shared
memory. Whether the other end can open this end's memory (the other process may see other devices) is tried before the
link relies on it: each end sends a handle of known content as soon as the link exists. Until the other end has reported
that it could read the handle, and for good after any failure to open one, payloads go through shared memory, with a
copy from the device. So a handle that cannot be opened costs at most the requests whose payloads were under way.

The memory behind a handle is the producer's until its consumer acknowledges the chunk or is gone, and vanishes with the
producer. Payloads that a consumer has not taken over by then are lost (:meth:`DeviceLink.invalidated`), reported to the
orchestrator as :func:`~omni_actors.protocol.errors.link_lost`, and the orchestrator begins another attempt.
"""

from __future__ import annotations

import logging
import socket
from collections import deque
from typing import Protocol

from omni_actors.connectors.packing import Export, Packed, pack
from omni_actors.connectors.payload import DeviceTensor, DeviceTensors, Payload, held_tensors
from omni_actors.connectors.shared_memory import Arena
from omni_actors.connectors.unix import UnixLink
from omni_actors.platforms.runtime import TransportError
from omni_actors.protocol.codec import frame
from omni_actors.protocol.errors import link_lost
from omni_actors.protocol.frames import (
    INLINE_LIMIT,
    MAX_PEER_FRAME,
    Ack,
    Chunk,
    DeviceMeta,
    Forget,
    Probe,
    Reach,
)

log = logging.getLogger("omni_actors.connectors")

CONNECTOR = "device"


class DeviceMemory(Protocol):
    """A worker's :class:`~omni_actors.platforms.runtime.DeviceTransport`, for tensors in the form that payloads
    hold."""

    def takes(self, tensor: DeviceTensor) -> bool:
        """Return whether :meth:`export` can hand on the tensor from its place."""
        ...

    def export(self, tensor: DeviceTensor) -> bytes:
        """Return a handle of the tensor's present content, valid until :meth:`release`. Raises
        :class:`TransportError`."""
        ...

    def release(self, handle: bytes) -> None:
        """Free the exported tensor behind a handle of this process."""
        ...

    def probe(self) -> bytes:
        """Return a handle of a few numbers that every end knows. Raises :class:`TransportError`."""
        ...

    def reaches(self, handle: bytes) -> bool:
        """Return whether another process's probe can be opened and holds the known numbers."""
        ...

    def open(self, handle: bytes) -> DeviceTensor:
        """Return the tensor behind another process's handle, valid until :meth:`close`. Raises
        :class:`TransportError`."""
        ...

    def close(self, handle: bytes) -> None:
        """Close a handle of another process."""
        ...


class Exports:
    """A producer's tensors under way on its device, under a byte budget.

    As with an :class:`~omni_actors.connectors.shared_memory.Arena`, callers check :attr:`pressed` before they make a
    payload.
    """

    def __init__(self, memory: DeviceMemory, budget: int) -> None:
        self.budget = budget
        self.used_bytes = 0
        self.total = 0
        """Tensors exported so far."""
        self.total_bytes = 0
        self._memory = memory

    @property
    def pressed(self) -> bool:
        """Whether the budget is used up."""
        return self.used_bytes >= self.budget

    def pack(self, payload: Payload, arena: Arena, readers: int) -> Packed | None:
        """Pack a payload with its tensors left on the device, for ``readers`` consumers; small tensors ride in the
        frame.

        Returns ``None`` when no tensor can stay there or the device has no room: the caller then packs the payload on
        the host.
        """
        held = held_tensors(payload)
        stays = [name for name, tensor in held.items() if tensor.nbytes > INLINE_LIMIT and self._memory.takes(tensor)]
        if not stays:
            return None
        exports: list[Export] = []
        try:
            for name in stays:
                tensor = held[name]
                exports.append(Export(self._memory.export(tensor), tensor.nbytes, readers))
                self.used_bytes += tensor.nbytes
            rest = {name: payload.tensors[name] for name in payload.tensors if name not in stays}
            packed = pack(Payload(payload.kind, payload.meta, rest, payload.dtypes), arena, readers)
        except BaseException as error:
            for export in exports:
                export.readers = 1
                self.release(export)
            if not isinstance(error, TransportError):
                raise
            log.warning("a payload goes through host memory: %s", error)
            return None
        metas = [
            DeviceMeta(name, held[name].dtype, held[name].shape, export.nbytes, export.handle)
            for name, export in zip(stays, exports, strict=True)
        ]
        packed.device, packed.exports = tuple(metas), tuple(exports)
        self.total += len(exports)
        self.total_bytes += sum(export.nbytes for export in exports)
        return packed

    def release(self, export: Export) -> None:
        """Count one reader as done with an export; the last reader frees the export."""
        export.readers -= 1
        if not export.readers:
            self.used_bytes -= export.nbytes
            self._memory.release(export.handle)


class DeviceLink(UnixLink):
    """One end of a link between two processes of one machine, with tensors left on the device. ``stage`` is the stage
    of this end, for errors."""

    def __init__(self, id: int, peer: str, sock: socket.socket, stage: str, memory: DeviceMemory) -> None:
        super().__init__(id, peer, sock)
        self._stage = stage
        self._memory = memory
        self._lent: dict[tuple[int, int], deque[tuple[int, bytes]]] = {}
        """Opened handles by request and edge, each with the number of its chunk."""
        self._given_up = False
        try:
            self._probe: bytes | None = memory.probe()
        except TransportError as error:
            self._probe = None
            self._give_up(f"this end has no device memory to share: {error}")
        else:
            self._send(frame(Probe(self._probe), MAX_PEER_FRAME))

    def _beside(self, message: Forget | Probe | Reach) -> None:
        if isinstance(message, Probe):
            reaches = self._memory.reaches(message.handle)
            self._send(frame(Reach(reaches), MAX_PEER_FRAME))
        elif isinstance(message, Reach):
            self._forget_probe()
            if not message.opened:
                self._give_up("the other end cannot open this one's device memory")
            self.direct = not self._given_up
        else:
            super()._beside(message)

    def payload(self, chunk: Chunk) -> Payload | None:
        """Return the payload of a chunk, as :meth:`Link.payload` does. Raises ``link_lost`` for a handle that cannot be
        opened (any more)."""
        payload = super().payload(chunk)
        if not chunk.device or payload is None:
            return payload
        lent = self._lent.setdefault((chunk.key, chunk.edge), deque())
        held: dict[str, DeviceTensor] = {}
        dtypes = dict(payload.dtypes)
        for meta in chunk.device:
            try:
                tensor = held[meta.name] = self._memory.open(meta.handle)
            except TransportError as error:
                log.warning("a payload from %s cannot be opened on the device: %s", self.peer, error)
                self._send(frame(Reach(False), MAX_PEER_FRAME))
                raise link_lost(self._stage) from error
            lent.append((chunk.seq, meta.handle))
            if (tensor.shape, tensor.dtype) != (meta.shape, meta.dtype):
                raise ValueError(f"tensor {meta.name!r} is {tensor.dtype}{list(tensor.shape)}, not as announced")
            if meta.dtype == "bfloat16":
                dtypes[meta.name] = meta.dtype
        return Payload(payload.kind, payload.meta, DeviceTensors(held, payload.tensors), dtypes)

    def send_ack(self, ack: Ack) -> None:
        lent = self._lent.get((ack.key, ack.edge))
        if lent is not None:
            while lent and lent[0][0] < ack.upto:
                self._memory.close(lent.popleft()[1])
            if not lent:
                del self._lent[ack.key, ack.edge]
        super().send_ack(ack)

    def invalidated(self) -> set[int]:
        return {key for key, _edge in self._lent}

    def close(self) -> None:
        super().close()
        self.direct = False
        self._forget_probe()

    def _forget_probe(self) -> None:
        if self._probe is not None:
            self._memory.release(self._probe)
            self._probe = None

    def _give_up(self, why: str) -> None:
        if not self._given_up:
            self._given_up = True
            log.warning("payloads to %s go through host memory: %s", self.peer, why)
