"""The intake of a worker: chunks from links become input of the engine, by way of the bridge of each edge."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from omni_actors.connectors.link import Link
from omni_actors.connectors.payload import Payload
from omni_actors.protocol.codec import ProtocolError
from omni_actors.protocol.frames import Chunk, EdgeSpec
from omni_actors.worker.bridge import Bridge, Identity
from omni_actors.worker.checks import InputError
from omni_actors.worker.credits import RequestCredits, Source
from omni_actors.worker.engine import Engine
from omni_actors.worker.output_collector import OutputCollector
from omni_actors.worker.returned import flag_of


class ChunkIntake:
    """Chunks on their way from a worker's links to its engine.

    A chunk may arrive before the Submit frame of its request, since Submit travels on another socket. The intake keeps
    such a chunk until :meth:`submitted` is called for the request.
    """

    def __init__(
        self,
        engine: Engine,
        out: OutputCollector,
        edges: Iterable[EdgeSpec],
        bridges: Mapping[int, Callable[[], Bridge]],
        fail: Callable[[RequestCredits, Exception], None],
    ) -> None:
        """Take the ``edges`` into this worker, the factory of each edge's bridge by edge index (edges without a factory
        use :class:`~omni_actors.worker.bridge.Identity`), and ``fail``, which ends one request."""
        self._engine = engine
        self._out = out
        self._edges = {edge.index: edge for edge in edges}
        self._bridges = bridges
        self._fail = fail
        self.early: dict[int, list[tuple[Link, Chunk]]] = {}
        """Chunks whose request has not been submitted here, by the key of the request."""
        self._last_key = -1

    def expect(self, key: int) -> None:
        """Note that request ``key`` is submitted: later chunks of requests up to ``key`` are not kept as early."""
        self._last_key = max(self._last_key, key)

    def submitted(self, key: int) -> None:
        """Take the chunks that arrived before request ``key`` did."""
        for link, chunk in self.early.pop(key, ()):
            self.take(link, chunk)

    def take(self, link: Link, chunk: Chunk) -> None:
        """Give a chunk to the engine through its edge's bridge, or keep the chunk until its request is submitted.

        Errors of the bridge and the engine fail the one request. Raises :class:`ProtocolError` for an edge that ends at
        another worker, and for a chunk out of order.
        """
        key = chunk.key
        request = self._out.requests.get(key)
        if request is None:
            if key > self._last_key:
                self.early.setdefault(key, []).append((link, chunk))
            else:  # the request is over here: nobody waits for the chunk to be read
                self._out.ack(link, key, chunk.edge, chunk.seq + 1)
            return
        source = request.sources.get(chunk.edge)
        if source is None:
            edge = self._edges.get(chunk.edge)
            if edge is None:
                raise ProtocolError(f"a chunk from {link.peer} on edge {chunk.edge}, which does not end here")
            try:
                bridge = self._bridges.get(edge.index, Identity)()
            except Exception as error:
                self._fail(request, error)
                self._out.ack(link, key, chunk.edge, chunk.seq + 1)
                return
            source = request.sources[chunk.edge] = Source(edge, link, bridge)
        if chunk.seq != source.seq:
            raise ProtocolError(f"chunk {chunk.seq} of request {key} where {source.seq} was due")
        source.seq += 1
        source.ended = chunk.end
        if chunk.end:
            request.awaited.pop(chunk.edge, None)
        source.slabs |= chunk.slab is not None or bool(chunk.device)
        try:
            items = source.take(link.payload(chunk), chunk.end)
            end = chunk.end and request.end_port(source.edge.port)
            last = len(items) - 1
            for i, item in enumerate(items):
                if not self.feed(key, source.edge.port, item, end and i == last):
                    source.queued.append(source.fed)
                source.fed += 1
            if end and not items:
                self.feed(key, source.edge.port, None, True)
        except Exception as error:
            if isinstance(error, InputError):
                error.stage = source.edge.source
            self._fail(request, error)
            return
        source.marks.append((chunk.seq, source.fed))
        self._out.settle(request, source)

    def feed(self, key: int, port: str, payload: Payload | None, end: bool) -> bool:
        """Feed the engine, and return whether the engine has consumed the payload."""
        consumed = self._engine.feed(key, port, payload, end)
        return flag_of(self._engine, "feed", consumed, "whether the payload is consumed")
