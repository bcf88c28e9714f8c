"""Links: the ordered, bidirectional channel between one producer's and one consumer's worker.

All edges between two stages share the link of their two replicas, so payloads arrive in the order in which they were
sent. Payloads up to :data:`~omni_actors.protocol.frames.INLINE_LIMIT` ride in the frame; larger payloads lie in the
producer's arena, and each backend hands them on in its own way: :class:`~omni_actors.connectors.unix.UnixLink` between
processes of one machine, :class:`~omni_actors.connectors.device.DeviceLink` where tensors stay on a device, and
:class:`~omni_actors.connectors.tcp.TcpLink` between machines. The worker's loop knows only the interface defined here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from omni_actors.connectors.payload import Payload
from omni_actors.connectors.shared_memory import Slot
from omni_actors.protocol.frames import Ack, Chunk


class LinkClosed(Exception):
    """The other end is gone, or cannot be reached any more."""


class Link(ABC):
    """One end of a link. Non-blocking: ``send_*`` queue, ``flush`` writes as much as the socket takes, ``receive``
    reads.

    The producer's slot of a payload stays reserved until the reader acknowledges the chunk or the link ends. The result
    of :meth:`payload` is lent: it does not change until the chunk is acknowledged, even if the other end dies first
    (but see :meth:`invalidated`).
    """

    may_break: ClassVar[bool] = False
    """Whether the link can end while both ends live."""

    def __init__(self, id: int, peer: str) -> None:
        self.id = id
        self.peer = peer
        """Name of the other end (``stage#replica@incarnation``), for logs and errors."""
        self.watched = False
        """Set by the owner's loop: whether the loop waits for the socket to become writable."""
        self.put = 0
        """Bytes queued so far."""
        self.written = 0
        """Bytes of the queued ones that the socket has taken."""
        self.direct = False
        """Whether the other end can open this end's device memory."""
        self.deadline: float | None = None
        """For the owner's loop: the time, by :func:`time.monotonic`, at which a link that is not open yet is given
        up."""

    @abstractmethod
    def fileno(self) -> int: ...

    @property
    @abstractmethod
    def pending(self) -> bool:
        """Whether :meth:`flush` has something to do as soon as the socket can be written."""

    @abstractmethod
    def send_chunk(self, chunk: Chunk, slot: Slot | None) -> None:
        """Queue a chunk, whose tensors are in its frame or in ``slot``. Raises :class:`FrameTooLarge` and the
        exceptions of encoding; nothing is queued in that case."""

    @abstractmethod
    def send_ack(self, ack: Ack) -> None:
        """Queue an acknowledgement, and give back memory that was lent up to there; works also on a closed link."""

    @abstractmethod
    def forget(self, slabs: list[int]) -> bool:
        """Tell the other end about slabs that are closed, if the other end maps them. Returns whether a message was
        queued."""

    @abstractmethod
    def mute(self) -> None:
        """Send nothing more: the other end reads no more. Messages that the other end has sent before can still be
        received."""

    @abstractmethod
    def flush(self) -> None:
        """Write as much as the socket takes now. Raises :class:`LinkClosed`."""

    @abstractmethod
    def receive(self) -> list[Chunk | Ack]:
        """Return the messages that have arrived. Raises :class:`LinkClosed` at the end, and :class:`ProtocolError`."""

    @abstractmethod
    def payload(self, chunk: Chunk) -> Payload | None:
        """Return the payload of a chunk from :meth:`receive`, as read-only views; ``None`` for a bare end. Raises
        :class:`LookupError`, :class:`ValueError` or :class:`TypeError` for a chunk without a valid payload."""

    def invalidated(self) -> set[int]:
        """Return the requests whose payloads had arrived and are lost by the other end's death: payloads lent from the
        memory of the other end's device."""
        return set()

    @abstractmethod
    def close(self) -> None:
        """Free everything except memory that is lent. Idempotent."""
