"""Where an engine's output goes: to the client by way of the serving process, and to other workers by links.

It keeps the requests of this worker (:class:`Job`) with their credits, and collects what one step makes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from omni_actors.connectors.device import Exports
from omni_actors.connectors.link import Link
from omni_actors.connectors.packing import Packed, Placed, pack, place
from omni_actors.connectors.payload import Payload, TensorSpecs, blank_payload
from omni_actors.connectors.shared_memory import Arena
from omni_actors.protocol.codec import FrameTooLarge
from omni_actors.protocol.errors import ErrorInfo, out_of_memory, stage_failed
from omni_actors.protocol.frames import Ack, Chunk, Ledger, Reply, Step
from omni_actors.protocol.request import MediaChunk, StageDone, StageFailed, TextDelta, Usage
from omni_actors.worker.control import Control
from omni_actors.worker.jobs import Job, Route, Source

log = logging.getLogger("omni_actors.worker")

_UNSENDABLE = (FrameTooLarge, TypeError, ValueError, OverflowError)
"""What encoding a frame raises."""

_NO_MEMORY = (MemoryError, OSError)
"""What making a slab raises: no memory, no descriptor."""


_END = Packed("", {}, ())
"""A chunk that only ends its edge."""

_FULL_STEP = 4 << 20
"""Bytes of media in one Step frame; with more than that, each piece goes in a frame of its own."""


@dataclass(slots=True, eq=False)
class _Emit:
    job: Job
    payload: Payload | None
    end: bool = False


class Outlet:
    """The :class:`~omni_actors.worker.engine.Outbox` of a worker's engine."""

    def __init__(
        self,
        stage: str,
        control: Control,
        arena: Arena,
        abort: Callable[[int], None],
        exports: Exports | None = None,
    ) -> None:
        """``abort`` has the engine forget a request whose output cannot be sent. ``exports`` is for payloads that may
        stay on the device."""
        self.arena = arena
        self.exports = exports
        self._stage = stage
        self._abort = abort
        self.jobs: dict[int, Job] = {}
        """Requests that the engine holds."""
        self.draining: dict[int, Job] = {}
        """Requests that are over here, but whose payloads have readers still."""
        self.asked: set[int] = set()
        """Questions without an answer."""
        self._control = control
        self._step = Step()
        self._emits: list[_Emit] = []
        self._last_emits: dict[int, _Emit] = {}
        self._done: list[tuple[Job, StageDone]] = []
        self._acks: dict[tuple[int, int], tuple[Link, Ack]] = {}
        self.chunks = 0
        """Chunks sent so far, on all links."""
        self.chunk_bytes = 0
        """Bytes of tensors in them."""

    # ---- the Outbox

    def ready(self, key: int) -> bool:
        job = self.jobs.get(key)
        if job is None:
            return True
        pressed = self.arena.pressed or (self.exports is not None and self.exports.pressed)
        return job.ready and not (pressed and job.holds_memory)

    def text(self, delta: TextDelta) -> None:
        job = self.jobs.get(delta.key)
        if job is not None and job.visible:
            self._step.texts.append(delta)

    def media(self, chunk: MediaChunk) -> None:
        job = self.jobs.get(chunk.key)
        if job is not None and job.visible:
            self._step.media.append(chunk)

    def ledger(self, key: int, index: int, tokens: list[int], data: bytes = b"") -> None:
        if key in self.jobs:
            self._step.ledger.append(Ledger(key, index, tokens, data))

    def allocate(self, key: int, kind: str, meta: dict[str, Any], specs: TensorSpecs) -> Payload:
        job = self.jobs.get(key)
        if job is not None and any(route.link is not None for route in job.routes):
            placed = place(kind, meta, specs, self.arena)
            if placed is not None:
                job.placed.add(placed.slot)
                return placed
        return blank_payload(kind, meta, specs)

    def emit(self, key: int, payload: Payload) -> None:
        job = self.jobs.get(key)
        if job is not None and job.routes:
            self._add(key, _Emit(job, payload))
            for route in job.routes:
                if route.edge.mode != "full":
                    route.queued += 1

    def consumed(self, key: int, port: str) -> None:
        job = self.jobs.get(key)
        if job is None:
            return
        for source in job.sources.values():
            if source.edge.port == port and source.queued:
                source.queued.popleft()
                self.settle(job, source)
                return
        self.feed_consumed(job)

    def finish(self, key: int, usage: Usage) -> None:
        job = self.jobs.get(key)
        if job is None:
            return
        if job.routes:
            if (last := self._last_emits.get(key)) is not None:
                last.end = True
            else:
                self._add(key, _Emit(job, None, True))
        self._done.append((job, StageDone(key, usage)))
        log.debug("done key=%d", key, extra={"request": job.request_id})
        self.retire(job, finished=True)

    def fail(self, key: int, error: ErrorInfo) -> None:
        job = self.jobs.get(key)
        if job is None:
            return
        self._step.failed.append(StageFailed(key, error))
        log.debug("failed key=%d: %s", key, error.message, extra={"request": job.request_id})
        self.retire(job)

    def reply(self, query: int, value: Any, error: ErrorInfo | None = None) -> None:
        self.asked.discard(query)
        try:
            self._control.send(Reply(query, value, error))
        except _UNSENDABLE as problem:
            log.error("an answer cannot be sent: %s", problem)
            info = ErrorInfo(message="The answer cannot be sent.", code="unsendable", stage=self._stage)
            self._control.send(Reply(query, None, info))

    # ---- for the loop

    @property
    def busy(self) -> bool:
        """Whether anybody waits for something that this worker has."""
        return bool(self.jobs or self.draining or self.asked)

    def retire(self, job: Job, *, finished: bool = False) -> None:
        """Nothing more comes of this request here. What readers have been told of stays until they let go; unless it is
        ``finished``, the rest of its memory is free at once."""
        del self.jobs[job.key]
        if not finished:
            job.dropped = True
            self._drop(job)
        for source in job.sources.values():
            if source.seq > source.acked:  # what was not consumed will not be
                self.ack(source.link, job.key, source.edge.index, source.seq)
        job.sources.clear()
        self.draining[job.key] = job

    def settle(self, job: Job, source: Source) -> None:
        """Give back the credits of what has been consumed."""
        upto = source.settle()
        if upto is not None:
            self.ack(source.link, job.key, source.edge.index, upto)

    def ack(self, link: Link, key: int, edge: int, upto: int) -> None:
        """Acknowledge with this step's write; a later one takes an earlier one's place."""
        self._acks[key, edge] = (link, Ack(key, edge, upto))

    def feed_consumed(self, job: Job) -> None:
        """A piece of streaming input is consumed."""
        if job.feeds_consumed < job.feeds:
            job.feeds_consumed += 1
            self._step.fed.append((job.key, job.feeds_consumed))

    def acknowledged(self, ack: Ack) -> None:
        """A consumer's credits and memory come back."""
        job = self.jobs.get(ack.key) or self.draining.get(ack.key)
        if job is None:
            return
        for route in job.routes:
            if route.edge.index == ack.edge:
                route.acked = max(route.acked, min(ack.upto, route.seq))
                while route.lent and route.lent[0][0] < ack.upto:
                    self._release(route.lent.popleft()[1])

    def lost(self, link: Link) -> None:
        """A consumer is gone: all its credits and memory come back, and what would go there goes nowhere."""
        for jobs in (self.jobs, self.draining):
            for job in jobs.values():
                for route in job.routes:
                    if route.link is link:
                        route.link = None
                        while route.lent:
                            self._release(route.lent.popleft()[1])
                        for packed in route.held:
                            self._release(packed)
                        route.held.clear()

    def flush(self) -> set[Link]:
        """Queue what was collected on its links, and return those."""
        touched: set[Link] = set()
        if self._emits:
            self._confide()
            for emit in self._emits:
                try:
                    self._send(emit, touched)
                except (*_UNSENDABLE, *_NO_MEMORY) as problem:
                    self._unsendable(emit.job.key, problem)
            self._emits.clear()
            self._last_emits.clear()
        if self._acks:
            for link, ack in self._acks.values():
                link.send_ack(ack)
                touched.add(link)
            self._acks.clear()
        return touched

    def _confide(self) -> None:
        """What was chosen leaves before anything that follows from it goes to another worker: a new attempt then
        repeats it, and does not contradict what the client has by way of that worker. (While the serving process is so
        slow to read that the socket is full, a death may take what waits here with it.)"""
        step = self._step
        if step.texts or step.ledger:
            told = Step(texts=step.texts, ledger=step.ledger)
            try:
                self._control.send(told)
            except _UNSENDABLE:
                return  # with the rest, one by one
            step.texts, step.ledger = [], []
            self._control.flush()

    def report(self) -> None:
        """Queue this step's frame for the serving process. Call it when the links have been flushed: a stage is done
        when its output is out of this process's hands, so that its death after that takes nothing with it."""
        step = self._step
        if self._done:
            step.done += [done for job, done in self._done if job.written]
            self._done = [(job, done) for job, done in self._done if not job.written]
        if self.draining:
            for key in [key for key, job in self.draining.items() if job.written and not job.holds_memory]:
                del self.draining[key]
                step.released.append(key)
        if not (step.texts or step.media or step.done or step.failed or step.released or step.fed or step.ledger):
            return
        self._step = Step()
        if sum(len(chunk.data) for chunk in step.media) > _FULL_STEP:
            self._send_one_by_one(step)
            return
        try:
            self._control.send(step)
        except _UNSENDABLE:
            self._send_one_by_one(step)

    # ---- inside

    def _add(self, key: int, emit: _Emit) -> None:
        self._emits.append(emit)
        self._last_emits[key] = emit

    def _unsendable(self, key: int, problem: Exception) -> None:
        """A payload or delta of this request has no encoding, is too large, or finds no memory: the request fails,
        nothing else does."""
        job = self.jobs.get(key)
        held = job or self.draining.get(key)
        log.error("output cannot be sent: %s", problem, extra={"request": held.request_id if held else None})
        self._done = [(it, done) for it, done in self._done if it.key != key]
        unsendable = stage_failed(self._stage, "its output cannot be sent")
        error = out_of_memory(self._stage) if isinstance(problem, _NO_MEMORY) else unsendable
        self._step.failed.append(StageFailed(key, error.info))
        if job is not None:
            self._abort(key)
            self.retire(job)
        elif held is not None:
            held.dropped = True
            self._drop(held)

    def _send_one_by_one(self, step: Step) -> None:
        """Each event in a frame of its own, then the rest: for what is too much together, and to find out whose event
        cannot be sent at all."""
        events = [(it.key, Step(texts=[it])) for it in step.texts]
        events += [(it.key, Step(ledger=[it])) for it in step.ledger]
        events += [(it.key, Step(media=[it])) for it in step.media]
        for key, event in events:
            try:
                self._control.send(event)
            except _UNSENDABLE as problem:
                step.done = [it for it in step.done if it.key != key]
                self._unsendable(key, problem)
        failed, self._step.failed = [*step.failed, *self._step.failed], []
        self._control.send(Step(done=step.done, failed=failed, released=step.released, fed=step.fed))

    def _send(self, emit: _Emit, touched: set[Link]) -> None:
        """Put a payload on the request's edges, or keep it back on those that publish at the end."""
        job = emit.job
        if emit.payload is not None:
            # Of every route, also one whose consumer is gone: what is owed for ever keeps the request from its release.
            for route in job.routes:
                if route.edge.mode != "full":
                    route.queued -= 1
        if job.dropped:
            return
        routes = {route: route.link for route in job.routes if route.link is not None}
        copied = direct = None
        waiting = list(routes)
        try:
            if emit.payload is not None:
                readers = len(routes)
                if self.exports is not None and (there := sum(link.direct for link in routes.values())):
                    direct = self.exports.pack(emit.payload, self.arena, there)
                    readers -= 0 if direct is None else there
                copied = self._pack(job, emit.payload, readers)
            for route, link in routes.items():
                touched.add(link)
                packed = copied if direct is None or not link.direct else direct
                at_once = route.edge.mode != "full"
                if at_once:
                    self._put(job.key, route, link, packed, emit.end)
                elif packed is not None:
                    route.held.append(packed)
                del waiting[0]
                if emit.end and not at_once:
                    self._publish(job.key, route, link)
        except BaseException:
            for route in waiting:  # nobody will read it by these routes
                self._release(copied if direct is None or not routes[route].direct else direct)
            raise
        finally:
            if emit.end:
                self._drop(job)

    def _pack(self, job: Job, payload: Payload, readers: int) -> Packed | None:
        """The payload where its readers can get it; ``None`` when there is none."""
        if not readers:
            return None  # what was written in place is given back when the request ends
        if isinstance(payload, Placed) and payload.slot in job.placed:
            job.placed.remove(payload.slot)
            return payload.packed(readers)
        return pack(payload, self.arena, readers)

    def _publish(self, key: int, route: Route, link: Link) -> None:
        """Send all that was held back, the last of it with the end."""
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
        self.chunks += 1
        for meta in packed.metas:
            self.chunk_bytes += meta.nbytes
        for export in packed.exports:
            self.chunk_bytes += export.nbytes

    def _drop(self, job: Job) -> None:
        """Free what no reader has been told of."""
        for slot in job.placed:
            self.arena.release(slot)
        job.placed.clear()
        for route in job.routes:
            for packed in route.held:
                self._release(packed)
            route.held.clear()

    def _release(self, packed: Packed | None) -> None:
        if packed is None:
            return
        if packed.slot is not None:
            self.arena.release(packed.slot)
        if self.exports is not None:
            for export in packed.exports:
                self.exports.release(export)
