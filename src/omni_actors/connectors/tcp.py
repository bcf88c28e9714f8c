"""A link between machines, with the contract of a link within one machine, over an authenticated TCP connection.

On the wire, after the handshake (:mod:`omni_actors.connectors.handshake`), frame follows frame::

    4 bytes   length of the message, little-endian
    4 bytes   length of the payload behind it (0: none, or it rides in the message)
    8 bytes   XXH3 (64 bits) of message and payload
    message   msgpack, as on a link within one machine
    payload   the tensors' bytes as they lie in the producer's slot

The payload goes from the producer's slot to the socket without a copy, and from the socket into a slot of the reading
worker's own arena, where the payload is lent to the engine until the acknowledgement goes back. The producer keeps its
slot for as long, as for a reader on the same machine, so the memory of a reader is bounded by its producers' budgets.

XXH3 was chosen for its cost: 10 us/MiB each side on the machine of the measurement, where zlib's CRC-32 takes 148,
CRC-32C 32, and loopback itself about 300.

A frame that was changed on its way ends the link, as a broken connection does. A whole frame without a valid meaning is
a :class:`ProtocolError`. A peer that is gone without a word (a machine that lost power) is noticed by the kernel, by
keep-alive or by data that is not taken for :data:`SILENCE_S`.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import struct
import time
from collections import deque

import msgspec
import xxhash

from omni_actors.connectors.handshake import CHALLENGE_BYTES, Opening, Refused
from omni_actors.connectors.link import Link, LinkClosed
from omni_actors.connectors.packing import size_of, unpack
from omni_actors.connectors.payload import Payload
from omni_actors.connectors.shared_memory import Arena, Slot
from omni_actors.protocol.codec import FrameTooLarge, ProtocolError, encode
from omni_actors.protocol.frames import MAX_PEER_FRAME, PROTOCOL_VERSION, Ack, Chunk, SlabRef

log = logging.getLogger("omni_actors.connectors")

MAX_PAYLOAD = 1 << 30
"""Limit of one chunk's tensors in bytes. A sender refuses a larger chunk, a reader closes the link."""

CONNECT_S = 60.0
"""Seconds for a link to open, from the moment at which an end is told of the link. A worker in a long step answers only
after the step, so this time must be longer than any step."""

SILENCE_S = 300.0
"""Seconds for which a peer may take no data, as the kernel sees it. A worker in a long step, whose buffers are full,
looks like a dead one: this time must be longer than any step. Deaths of workers whose machine lives show at once, and
deaths of machines show to the launcher of the workers there."""

_HEADER = struct.Struct("<IIQ")
_STAGING = 64 << 10
_TURN = 4 << 20
"""Most bytes that one call of ``receive`` reads, so that one busy link does not hold up the others."""

_MOST_PARTS = 64
_decode = msgspec.msgpack.Decoder(Chunk | Ack).decode


def configure(sock: socket.socket) -> None:
    """Set up a TCP socket: non-blocking, without Nagle's delay, with detection of silent peers."""
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, int(SILENCE_S / 2))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, int(SILENCE_S / 8))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(SILENCE_S * 1000))


class TcpLink(Link):
    """A link over one TCP connection. ``inbox`` is the memory for payloads that arrive; several links may share one.

    Written bytes are in the kernel's hands: the other end gets them unless this machine goes down, or this process dies
    while acknowledgements lie unread. A reader whose input ends early reports that (``Unlinked``).
    """

    may_break = True

    def __init__(self, id: int, peer: str, sock: socket.socket, inbox: Arena, opening: Opening | None = None) -> None:
        """Take ``sock``, which is authenticated, or which this end is connecting, with the handshake ``opening`` to
        do."""
        super().__init__(id, peer)
        configure(sock)
        self._sock = sock
        self._inbox = inbox
        self._opening = opening
        self._connected = opening is None
        self.deadline = None if opening is None else time.monotonic() + CONNECT_S
        self._out: deque[memoryview] = deque()
        self._muted = False
        self._broken = False
        self._staging = memoryview(bytearray(_STAGING))
        self._partial = bytearray()
        self._arriving: _Arriving | None = None
        self._lent: dict[tuple[int, int], deque[tuple[int, Slot]]] = {}

    @classmethod
    def open(cls, id: int, peer: str, address: tuple[str, int], secret: bytes, inbox: Arena) -> TcpLink:
        """Begin to connect to ``address`` (an IP address: no name is looked up here). Output waits until the other end
        has authenticated. Raises :class:`OSError` when the connection cannot begin; later failures show as the end of
        the link."""
        sock = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                sock.connect(address)
            return cls(id, peer, sock, inbox, Opening(id, secret, PROTOCOL_VERSION))
        except BaseException:
            sock.close()
            raise

    def fileno(self) -> int:
        return self._sock.fileno()

    @property
    def pending(self) -> bool:
        return not self._muted and (not self._connected or (self._opening is None and bool(self._out)))

    # ---- sending

    def send_chunk(self, chunk: Chunk, slot: Slot | None) -> None:
        if slot is None:
            self._send(chunk)
            return
        nbytes = size_of(chunk.tensors)
        if nbytes > MAX_PAYLOAD:
            raise FrameTooLarge(f"a payload of {nbytes} bytes; the limit is {MAX_PAYLOAD}")
        self._send(chunk, slot.view(nbytes))

    def send_ack(self, ack: Ack) -> None:
        where = (ack.key, ack.edge)
        if (lent := self._lent.get(where)) is not None:
            while lent and lent[0][0] < ack.upto:
                self._inbox.release(lent.popleft()[1])
            if not lent:
                del self._lent[where]
        self._send(ack)

    def forget(self, slabs: list[int]) -> bool:
        return False  # the other end has its own copy

    def _send(self, message: Chunk | Ack, payload: memoryview | None = None) -> None:
        body = encode(message)
        if len(body) > MAX_PEER_FRAME:
            raise FrameTooLarge(f"a {type(message).__name__} of {len(body)} bytes; the limit is {MAX_PEER_FRAME}")
        if self._muted:
            return
        digest = xxhash.xxh3_64(body)
        if payload is not None:
            digest.update(payload)
        head = _HEADER.pack(len(body), 0 if payload is None else len(payload), digest.intdigest()) + body
        self._out.append(memoryview(head))
        self.put += len(head)
        if payload is not None:
            self._out.append(payload)
            self.put += len(payload)

    def mute(self) -> None:
        self._muted = True
        self._out.clear()
        self.written = self.put

    def flush(self) -> None:
        if not self._connected:
            self._greet()
        if self._opening is not None or self._muted:
            return
        out = self._out
        while out:
            try:
                sent = self._sock.sendmsg([out[i] for i in range(min(len(out), _MOST_PARTS))])
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                raise LinkClosed(self.peer) from error
            self.written += sent
            while sent:
                if sent < len(out[0]):
                    out[0] = out[0][sent:]
                    break
                sent -= len(out.popleft())

    # ---- the opening end's part of the handshake

    def _greet(self) -> None:
        assert self._opening is not None
        try:
            sent = self._sock.send(self._opening.greeting)
        except BlockingIOError:
            return  # not connected yet
        except OSError as error:
            raise LinkClosed(self.peer) from error
        if sent < len(self._opening.greeting):
            raise LinkClosed(self.peer)  # impossible with the empty buffer of a new connection
        self._connected = True

    def _authenticate(self) -> bool:
        """Return whether the other end has authenticated by now."""
        assert self._opening is not None
        missing = CHALLENGE_BYTES - len(self._partial)
        self._partial += self._read(self._staging[:missing])
        if len(self._partial) < CHALLENGE_BYTES:
            return False
        try:
            proof = self._opening.answer(bytes(self._partial))
            if self._sock.send(proof) < len(proof):
                raise LinkClosed(self.peer)
        except (Refused, OSError) as error:
            log.warning("link %d to %s is refused: %s", self.id, self.peer, error)
            raise LinkClosed(self.peer) from error
        self._partial.clear()
        self._opening = None
        self.deadline = None
        return True

    # ---- receiving

    def receive(self) -> list[Chunk | Ack]:
        messages: list[Chunk | Ack] = []
        if self._broken:
            raise LinkClosed(self.peer)
        try:
            if self._opening is not None and not self._authenticate():
                return messages
            budget = _TURN
            while budget > 0:
                arriving = self._arriving
                target = self._staging if arriving is None else arriving.rest[:budget]
                data = self._read(target)
                budget -= len(data)
                if arriving is None:
                    self._split(data, messages)
                    if len(data) < len(target) and self._arriving is None:
                        break
                elif arriving.take(len(data)):
                    self._arriving = None
                    messages.append(self._arrived(arriving))
        except (BlockingIOError, InterruptedError):
            pass
        except LinkClosed:
            if not messages:
                raise  # with messages, the end shows again at the next call
        return messages

    def _read(self, target: memoryview) -> memoryview:
        """Read into ``target``, and return the bytes read. Raises :class:`BlockingIOError` if there are none."""
        try:
            count = self._sock.recv_into(target)
        except (BlockingIOError, InterruptedError):
            raise
        except OSError as error:
            raise LinkClosed(self.peer) from error
        if not count:
            raise LinkClosed(self.peer)
        return target[:count]

    def _split(self, data: memoryview, messages: list[Chunk | Ack]) -> None:
        """Add the messages that this piece of the stream completes, and keep the begin of an incomplete message."""
        if self._partial:
            self._partial += data
            stream, self._partial = self._partial, bytearray()
            data = memoryview(stream)
        view, position, size = data, 0, len(data)
        while size - position >= _HEADER.size:
            length, payload, digest = _HEADER.unpack_from(view, position)
            if length > MAX_PEER_FRAME or payload > MAX_PAYLOAD:
                raise self._corrupt(f"a frame of {length} and {payload} bytes")
            begin = position + _HEADER.size
            if begin + length > size:
                break
            position = begin + length
            arriving = _Arriving(bytes(view[begin:position]), digest, payload, self._inbox)
            if payload:
                there = min(payload, size - position)
                arriving.rest[:there] = view[position : position + there]
                position += there
                if not arriving.take(there):
                    self._arriving = arriving
                    break
            messages.append(self._arrived(arriving))
        self._partial += view[position:]

    def _arrived(self, arriving: _Arriving) -> Chunk | Ack:
        """Return the message of a complete frame; its payload, if any, is lent from now on."""
        slot = arriving.slot
        try:
            if arriving.digest.intdigest() != arriving.expected:
                raise self._corrupt("a frame with a wrong checksum")
            try:
                message: Chunk | Ack = _decode(arriving.body)
            except msgspec.DecodeError as error:
                raise ProtocolError(f"malformed frame from {self.peer}: {error}") from error
            if isinstance(message, Ack):
                if slot is not None:
                    raise ProtocolError(f"an acknowledgement with a payload from {self.peer}")
                return message
            if message.slab is not None or (slot is None) != (message.data is not None or not message.tensors):
                raise ProtocolError(f"a chunk from {self.peer} that does not say where its payload is")
            if slot is not None:
                if size_of(message.tensors) != arriving.size:
                    raise ProtocolError(f"a chunk from {self.peer} whose tensors are not its payload")
                message.slab = SlabRef(slot.slab.id, slot.offset, False)
                self._lent.setdefault((message.key, message.edge), deque()).append((message.seq, slot))
                slot = None
            return message
        finally:
            if slot is not None:
                self._inbox.release(slot)

    def _corrupt(self, what: str) -> LinkClosed:
        self._broken = True
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)  # both ends see the end, also if no more data comes
        log.error("%s arrived on link %d from %s: the connection is closed", what, self.id, self.peer)
        return LinkClosed(self.peer)

    def payload(self, chunk: Chunk) -> Payload | None:
        if chunk.slab is None:
            return unpack(chunk, memoryview(chunk.data or b""))
        for seq, slot in self._lent[chunk.key, chunk.edge]:
            if seq == chunk.seq:
                return unpack(chunk, slot.view(size_of(chunk.tensors)).toreadonly())
        raise LookupError(f"chunk {chunk.seq} of request {chunk.key} was given back already")

    def close(self) -> None:
        self.mute()
        self._sock.close()
        if self._arriving is not None and self._arriving.slot is not None:
            self._inbox.release(self._arriving.slot)
        self._arriving = None


class _Arriving:
    """A frame whose message is complete and whose payload is on its way into a slot of its own."""

    __slots__ = ("body", "digest", "expected", "rest", "size", "slot")

    def __init__(self, body: bytes, expected: int, size: int, inbox: Arena) -> None:
        self.body = body
        self.expected = expected
        self.size = size
        self.digest = xxhash.xxh3_64(body)
        self.slot = inbox.allocate(size) if size else None
        self.rest = self.slot.view(size) if self.slot is not None else memoryview(b"")

    def take(self, count: int) -> bool:
        """Count ``count`` bytes of ``rest`` as filled in, and return whether the payload is complete."""
        self.digest.update(self.rest[:count])
        self.rest = self.rest[count:]
        return not self.rest
