"""A link: the ordered, bidirectional channel between one producer's and one consumer's worker.

All edges between two stages share the link of their two replicas, so what is sent in order arrives in order. Payloads
up to :data:`~omni_actors.protocol.frames.INLINE_LIMIT` ride in the frame; larger ones lie in the producer's arena, and
each backend hands them on in its own way: :class:`~omni_actors.connectors.unix.UnixLink` between processes of one
machine, :class:`~omni_actors.connectors.device.DeviceLink` where tensors stay on a device there, and
:class:`~omni_actors.connectors.tcp.TcpLink` between machines. The worker's loop knows only what is here.
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
    """One end. Non-blocking: ``send_*`` queue, ``flush`` writes what the socket takes, ``receive`` reads what came.

    The producer's slot of a payload is its reader's until that acknowledges the chunk or the link ends. What
    :meth:`payload` gives is lent: it stays as it is until the chunk is acknowledged, also when the other end dies
    first (but see :meth:`invalidated`).
    """

    may_break: ClassVar[bool] = False
    """Whether it can end while both ends live."""

    def __init__(self, id: int, peer: str) -> None:
        self.id = id
        self.peer = peer
        """Name of the other end (``stage#replica@incarnation``), for logs and errors."""
        self.watched = False
        """For the owner's loop: whether it waits for the socket to become writable."""
        self.put = 0
        """Bytes that were queued so far."""
        self.written = 0
        """Bytes of them that the socket has taken."""
        self.direct = False
        """Whether the other end can open this one's device memory."""
        self.deadline: float | None = None
        """For the owner's loop: when a link that is not open yet is to be given up, by :func:`time.monotonic`."""

    @abstractmethod
    def fileno(self) -> int: ...

    @property
    @abstractmethod
    def pending(self) -> bool:
        """Whether there is something to do for :meth:`flush` as soon as the socket can be written."""

    @abstractmethod
    def send_chunk(self, chunk: Chunk, slot: Slot | None) -> None:
        """Queue a chunk; the bytes of its tensors are in its frame or in ``slot``. Raises :class:`FrameTooLarge`, and
        what encoding raises; nothing is queued then."""

    @abstractmethod
    def send_ack(self, ack: Ack) -> None:
        """Queue an acknowledgement: what was lent up to there is given back. Also at a link that is closed."""

    @abstractmethod
    def forget(self, slabs: list[int]) -> bool:
        """Tell the other end of slabs that are closed, if it knows them; whether anything was queued."""

    @abstractmethod
    def mute(self) -> None:
        """The other end takes no more; what it has said before can still be received."""

    @abstractmethod
    def flush(self) -> None:
        """Write what the socket takes now. Raises :class:`LinkClosed`."""

    @abstractmethod
    def receive(self) -> list[Chunk | Ack]:
        """The messages that have arrived. Raises :class:`LinkClosed` at the end and :class:`ProtocolError`."""

    @abstractmethod
    def payload(self, chunk: Chunk) -> Payload | None:
        """The payload of a chunk from :meth:`receive`, as read-only views; ``None`` for a bare end. Raises
        :class:`LookupError`, :class:`ValueError` or :class:`TypeError` for one that makes no sense."""

    def invalidated(self) -> set[int]:
        """The requests whose payloads the other end's death takes with it, although they had arrived: what is lent of
        its device's memory."""
        return set()

    @abstractmethod
    def close(self) -> None:
        """Free everything but what is lent. Idempotent."""
