"""The flow control of one request in a worker: outgoing routes, incoming sources, and the credits of both."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from omni_actors.connectors.link import Link
from omni_actors.connectors.packing import Packed
from omni_actors.connectors.payload import Payload
from omni_actors.connectors.shared_memory import Slot
from omni_actors.protocol.frames import ANY_KIND, EdgeSpec
from omni_actors.worker.bridge import Bridge
from omni_actors.worker.returned import kind_of, sequence_of, wrong


@dataclass(slots=True, eq=False)
class Route:
    """One outgoing edge of one request.

    ``seq`` chunks are sent and ``acked`` of them consumed; ``lent`` holds the packed payloads in between. ``queued``
    more chunks are on their way to the link and have spent their credits already. On an edge in ``full`` mode every
    payload is ``held`` here, packed, and all are published at once when the stage has finished.
    """

    edge: EdgeSpec
    link: Link | None
    seq: int = 0
    acked: int = 0
    queued: int = 0
    upto: int = 0
    """The position in its link's output where this route's last chunk ends, in bytes."""
    lent: deque[tuple[int, Packed]] = field(default_factory=deque)
    held: list[Packed] = field(default_factory=list)

    @property
    def ready(self) -> bool:
        """Whether the route has a credit, or no consumer any more."""
        return self.link is None or self.seq + self.queued - self.acked < self.edge.capacity

    @property
    def written(self) -> bool:
        """Whether the consumer will get all chunks sent so far, even if the worker ends now."""
        return self.link is None or self.link.written >= self.upto


@dataclass(slots=True, eq=False)
class Source:
    """One incoming edge of one request.

    A bridge may make none, one or several items of a chunk, so credits are counted through ``marks``: after chunk
    ``seq`` so many items had been ``fed``. A chunk is consumed when no item before its mark is ``queued`` any more: an
    engine may take a later item at once while an earlier one, and the memory that the earlier item lies in, still
    waits.
    """

    edge: EdgeSpec
    link: Link
    bridge: Bridge
    seq: int = 0
    acked: int = 0
    fed: int = 0
    queued: deque[int] = field(default_factory=deque)
    ended: bool = False
    slabs: bool = False
    marks: deque[tuple[int, int]] = field(default_factory=deque)

    def take(self, payload: Payload | None, end: bool) -> Sequence[Payload]:
        """Return the items that the bridge makes of a chunk. Raises the bridge's exceptions, and :class:`WrongReturn`
        for anything but payloads of the port's kind."""
        bridge, wanted = self.bridge, self.edge.port_kind
        items = sequence_of(bridge, "feed", bridge.feed(payload, end), "a list of Payload")
        for item in items:
            if not isinstance(item, Payload):
                raise wrong(bridge, "feed", f"a list with {kind_of(item)}", "a list of Payload")
            if item.kind != wanted and wanted not in ANY_KIND:
                where = f"{self.edge.target}.{self.edge.port}"
                raise wrong(bridge, "feed", f"a payload of kind '{item.kind}' for port '{where}'", f"kind '{wanted}'")
        return items

    def settle(self) -> int | None:
        """Return the cumulative acknowledgement that is due now, or ``None``."""
        upto = None
        consumed = self.queued[0] if self.queued else self.fed
        while self.marks and self.marks[0][1] <= consumed:
            upto = self.marks.popleft()[0] + 1
        if upto is None:
            return None
        self.acked = upto
        # After the end nobody waits for credits; only shared memory must still be released.
        return upto if self.slabs or not self.ended else None


@dataclass(slots=True, eq=False)
class RequestCredits:
    """One request in this worker, with its routes, sources and credits.

    ``waiting`` are the ports that have not ended. ``placed`` are slots allocated for the engine and not emitted;
    ``leaving`` counts emitted payloads that no link has taken yet; with ``dropped`` those payloads go nowhere.
    ``awaited`` maps each edge by TCP without an end so far to its link.
    """

    key: int
    request_id: str
    visible: bool
    routes: tuple[Route, ...]
    waiting: set[str]
    sources: dict[int, Source] = field(default_factory=dict)
    feeds: int = 0
    feeds_consumed: int = 0
    placed: set[Slot] = field(default_factory=set)
    leaving: int = 0
    dropped: bool = False
    awaited: dict[int, int] = field(default_factory=dict)

    @property
    def ready(self) -> bool:
        """Whether every route has a credit."""
        return all(route.ready for route in self.routes)

    @property
    def holds_memory(self) -> bool:
        """Whether readers, or the send queue, hold memory of this request."""
        return any(route.lent or route.queued for route in self.routes)

    @property
    def credits(self) -> int:
        """Chunks that are sent and not acknowledged."""
        return sum(route.seq - route.acked for route in self.routes if route.link is not None)

    @property
    def written(self) -> bool:
        """Whether every payload of this request has left the process."""
        return not self.leaving and all(route.written for route in self.routes)

    def end_port(self, port: str) -> bool:
        """End a port, and return whether the port was open."""
        if port not in self.waiting:
            return False
        self.waiting.discard(port)
        return True
