"""The send queue: payloads on their way from this worker to others.

A payload is packed at the end of its step, and queued on its links as soon as the tokens behind the payload have left
this process. The payload's memory is kept until the readers release it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from omni_actors.connectors.device import Exports
from omni_actors.connectors.link import Link
from omni_actors.connectors.packing import Packed, Placed, pack, place
from omni_actors.connectors.payload import Payload, TensorSpecs, blank_payload
from omni_actors.connectors.shared_memory import Arena
from omni_actors.protocol.codec import FrameTooLarge
from omni_actors.protocol.frames import Ack, Chunk
from omni_actors.worker.control_socket import ControlSocket
from omni_actors.worker.credits import RequestCredits, Route

UNSENDABLE = (FrameTooLarge, TypeError, ValueError, OverflowError, RecursionError, msgspec.ValidationError)
"""Exceptions for a frame that has no encoding, is too large, or would be refused by its reader."""

NO_MEMORY = (MemoryError, OSError)
"""Exceptions when a slab cannot be made: no memory, no file descriptor."""

_END = Packed("", {}, ())
"""A chunk that only ends its edge."""


@dataclass(slots=True, eq=False)
class _Entry:
    """A payload, ``packed`` for each route at the end of the step, or the bare end of the request's edges. The entry
    leaves when the control socket has taken its output up to byte ``upto``."""

    request: RequestCredits
    payload: Payload | None
    end: bool = False
    packed: dict[Route, Packed] = field(default_factory=dict)
    upto: int = 0


class SendQueue:
    """The queue of one worker's outgoing payloads, in order. The queue is empty between two steps, unless the control
    socket is full."""

    def __init__(
        self,
        control: ControlSocket,
        arena: Arena,
        exports: Exports | None,
        unsendable: Callable[[int, Exception], None],
    ) -> None:
        """Send payloads over memory of ``arena`` or, if given, of ``exports``. ``unsendable`` is called with the key of
        a request whose payload cannot be sent, and with the reason."""
        self.arena = arena
        self.exports = exports
        self._chunks = 0
        self._chunk_bytes = 0
        self._control = control
        self._unsendable = unsendable
        self._made: list[_Entry] = []
        self._last: dict[int, _Entry] = {}
        self._waiting: deque[_Entry] = deque()

    @property
    def pressed(self) -> bool:
        """Whether the memory for payloads is used up: requests with memory in use make no more payloads."""
        return self.arena.pressed or (self.exports is not None and self.exports.pressed)

    @property
    def made(self) -> bool:
        """Whether there are payloads of this step."""
        return bool(self._made)

    @property
    def pending(self) -> bool:
        """Whether :meth:`flush` may have something to do."""
        return bool(self._made or self._waiting)

    @property
    def due(self) -> bool:
        """Whether the first waiting payload may leave: the control socket has taken the tokens that the payload follows
        from."""
        return bool(self._waiting) and self._waiting[0].upto <= self._control.written

    # ---- the payloads of a step

    def allocate(self, request: RequestCredits, kind: str, meta: dict[str, Any], specs: TensorSpecs) -> Payload:
        """Return a payload to be written in place, in shared memory where that saves a copy."""
        if any(route.link is not None for route in request.routes):
            placed = place(kind, meta, specs, self.arena)
            if placed is not None:
                request.placed.add(placed.slot)
                return placed
        return blank_payload(kind, meta, specs)

    def add(self, request: RequestCredits, payload: Payload) -> None:
        """Queue a payload for all edges of the request."""
        self._add(_Entry(request, payload))
        for route in request.routes:
            if route.edge.mode != "full":
                route.queued += 1

    def end(self, request: RequestCredits) -> None:
        """Queue the end of all edges of the request, behind or with the last payload."""
        if (last := self._last.get(request.key)) is not None:
            last.end = True
        else:
            self._add(_Entry(request, None, True))

    def flush(self, touched: set[Link]) -> None:
        """Queue the payloads that may leave on their links, and add those links to ``touched``. Payloads of the present
        step may leave when the control socket has taken everything queued there by now."""
        if self._made:
            upto = self._control.put
            for entry in self._made:
                try:
                    self._pack(entry)
                except Exception as problem:  # an engine may have given any object as a tensor
                    self._unsendable(entry.request.key, problem)
                entry.upto = upto
            self._waiting += self._made
            self._made.clear()
            self._last.clear()
        waiting, written = self._waiting, self._control.written
        while waiting and waiting[0].upto <= written:
            entry = waiting.popleft()
            try:
                self._send(entry, touched)
            except UNSENDABLE as problem:
                self._unsendable(entry.request.key, problem)

    # ---- acknowledgements and losses

    def acknowledged(self, request: RequestCredits, ack: Ack) -> None:
        """Take back the credits and the memory that a consumer acknowledges."""
        for route in request.routes:
            if route.edge.index == ack.edge:
                route.acked = max(route.acked, min(ack.upto, route.seq))
                while route.lent and route.lent[0][0] < ack.upto:
                    self._release(route.lent.popleft()[1])

    def lost(self, link: Link, requests: Iterable[RequestCredits]) -> None:
        """Take back all credits and memory of a vanished consumer, and drop further payloads for the consumer."""
        for request in requests:
            for route in request.routes:
                if route.link is link:
                    route.link = None
                    while route.lent:
                        self._release(route.lent.popleft()[1])
                    self._release_held(route)

    def drop(self, request: RequestCredits) -> None:
        """Free the payloads not announced to any reader. (Waiting payloads are freed when their turn comes.)"""
        for slot in request.placed:
            self.arena.release(slot)
        request.placed.clear()
        for route in request.routes:
            self._release_held(route)

    def counters(self) -> dict[str, float]:
        """Return the gauges of the memory for payloads, the number of chunks sent so far, and the bytes of their
        tensors."""
        counters: dict[str, float] = {
            "arena_used_bytes": self.arena.used_bytes,
            "arena_bytes": self.arena.bytes,
            "chunks_total": self._chunks,
            "chunk_bytes_total": self._chunk_bytes,
        }
        if (exports := self.exports) is not None:
            counters |= {
                "device_used_bytes": exports.used_bytes,
                "device_payloads_total": exports.total,
                "device_payload_bytes_total": exports.total_bytes,
            }
        return counters

    # ---- inside

    def _add(self, entry: _Entry) -> None:
        entry.request.leaving += 1
        self._made.append(entry)
        self._last[entry.request.key] = entry

    def _pack(self, entry: _Entry) -> None:
        """Put a payload into its place for the readers, before the engine goes on. Nothing is held when this raises."""
        request, payload = entry.request, entry.payload
        if request.dropped or payload is None:
            return
        links = {route: route.link for route in request.routes if route.link is not None}
        readers = len(links)
        direct: Packed | None = None
        if self.exports is not None and (there := sum(link.direct for link in links.values())):
            direct = self.exports.pack(payload, self.arena, there)
        if direct is not None:
            entry.packed = {route: direct for route, link in links.items() if link.direct}
            readers -= len(entry.packed)
        if not readers:
            return  # memory that was written in place is released when the request ends
        try:
            copied = self._copy(request, payload, readers)
        except BaseException:
            self._release_all(entry)
            raise
        for route in links:
            entry.packed.setdefault(route, copied)

    def _copy(self, request: RequestCredits, payload: Payload, readers: int) -> Packed:
        if isinstance(payload, Placed) and payload.slot in request.placed:
            request.placed.remove(payload.slot)
            return payload.packed(readers)
        return pack(payload, self.arena, readers)

    def _send(self, entry: _Entry, touched: set[Link]) -> None:
        """Put a payload on the request's edges, or hold it back on edges that publish at the end."""
        request = entry.request
        request.leaving -= 1
        if entry.payload is not None:
            # Also on a route whose consumer is gone: a payload that is never settled would keep the request here.
            for route in request.routes:
                if route.edge.mode != "full":
                    route.queued -= 1
        try:
            for route in () if request.dropped else request.routes:
                if (link := route.link) is None:
                    continue
                touched.add(link)
                packed = entry.packed.get(route)
                at_once = route.edge.mode != "full"
                if at_once:
                    self._put(request.key, route, link, packed, entry.end)
                elif packed is not None:
                    route.held.append(packed)
                if packed is not None:
                    del entry.packed[route]
                if entry.end and not at_once:
                    self._publish(request.key, route, link)
        finally:
            if entry.packed:
                self._release_all(entry)  # no route took these
            if entry.end:
                self.drop(request)

    def _publish(self, key: int, route: Route, link: Link) -> None:
        """Send all payloads that were held back, the last one with the end."""
        while len(route.held) > 1:
            self._put(key, route, link, route.held[0], False)
            del route.held[0]
        self._put(key, route, link, route.held[0] if route.held else None, True)
        route.held.clear()

    def _put(self, key: int, route: Route, link: Link, packed: Packed | None, end: bool) -> None:
        packed = packed or _END
        chunk = Chunk(key, route.edge.index, route.seq, end, packed.kind, packed.meta, packed.metas, packed.data)
        if packed.device:
            chunk.device = packed.device
        link.send_chunk(chunk, packed.slot)
        if packed.slot is not None or packed.exports:
            route.lent.append((route.seq, packed))
        route.seq += 1
        route.upto = link.put
        self._chunks += 1
        for meta in packed.metas:
            self._chunk_bytes += meta.nbytes
        for export in packed.exports:
            self._chunk_bytes += export.nbytes

    def _release_held(self, route: Route) -> None:
        for packed in route.held:
            self._release(packed)
        route.held.clear()

    def _release_all(self, entry: _Entry) -> None:
        for packed in entry.packed.values():
            self._release(packed)
        entry.packed.clear()

    def _release(self, packed: Packed) -> None:
        if packed.slot is not None:
            self.arena.release(packed.slot)
        if self.exports is not None:
            for export in packed.exports:
                self.exports.release(export)
