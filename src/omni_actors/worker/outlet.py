"""Where an engine's output goes: to the client by way of the serving process, and to other workers by links.

It keeps the requests of this worker (:class:`Job`) with their credits, and collects what one step makes.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from omni_actors.connectors.link import Link, pack
from omni_actors.connectors.payload import Payload
from omni_actors.connectors.shared_memory import Arena
from omni_actors.protocol.errors import ErrorInfo
from omni_actors.protocol.frames import Ack, Chunk, Reply, SlabRef, Step
from omni_actors.protocol.request import MediaChunk, StageDone, StageFailed, TextDelta, Usage
from omni_actors.worker.control import Control
from omni_actors.worker.jobs import Job, Route, Source

log = logging.getLogger("omni_actors.worker")


@dataclass(slots=True, eq=False)
class _Emit:
    job: Job
    payload: Payload | None
    end: bool = False


class Outlet:
    """The :class:`~omni_actors.worker.engine.Outbox` of a worker's engine."""

    def __init__(self, control: Control, arena: Arena) -> None:
        self.arena = arena
        self.jobs: dict[int, Job] = {}
        """Requests that the engine holds."""
        self.draining: dict[int, Job] = {}
        """Requests that are over here, but whose payloads have readers still."""
        self._control = control
        self._step = Step()
        self._emits: list[_Emit] = []
        self._acks: dict[tuple[int, int], tuple[Link, Ack]] = {}
        self._replies: list[Reply] = []

    # ---- the Outbox

    def ready(self, key: int) -> bool:
        job = self.jobs.get(key)
        if job is None:
            return True
        return job.ready and not (self.arena.pressed and job.holds_memory)

    def text(self, delta: TextDelta) -> None:
        job = self.jobs.get(delta.key)
        if job is not None and job.visible:
            self._step.texts.append(delta)

    def media(self, chunk: MediaChunk) -> None:
        job = self.jobs.get(chunk.key)
        if job is not None and job.visible:
            self._step.media.append(chunk)

    def emit(self, key: int, payload: Payload) -> None:
        job = self.jobs.get(key)
        if job is not None and job.routes:
            self._emits.append(_Emit(job, payload))
            for route in job.routes:
                if route.edge.mode != "full":
                    route.queued += 1

    def consumed(self, key: int, port: str) -> None:
        job = self.jobs.get(key)
        if job is None:
            return
        for source in job.sources.values():
            if source.edge.port == port and source.consumed < source.fed:
                source.consumed += 1
                self.settle(job, source)
                return
        self.feed_consumed(job)

    def finish(self, key: int, usage: Usage) -> None:
        job = self.jobs.get(key)
        if job is None:
            return
        if job.routes:
            last = next((emit for emit in reversed(self._emits) if emit.job is job), None)
            if last is not None:
                last.end = True
            else:
                self._emits.append(_Emit(job, None, True))
        self._step.done.append(StageDone(key, usage))
        log.debug("done key=%d", key, extra={"request": job.request_id})
        self.retire(job)

    def fail(self, key: int, error: ErrorInfo) -> None:
        job = self.jobs.get(key)
        if job is None:
            return
        self._step.failed.append(StageFailed(key, error))
        log.debug("failed key=%d: %s", key, error.message, extra={"request": job.request_id})
        self.retire(job)

    def reply(self, query: int, value: Any, error: ErrorInfo | None = None) -> None:
        self._replies.append(Reply(query, value, error))

    # ---- for the loop

    def retire(self, job: Job) -> None:
        """Nothing more comes of this request here. Its memory may still wait for readers."""
        del self.jobs[job.key]
        for source in job.sources.values():
            if source.seq > source.acked and source.slabs:
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
                while route.slots and route.slots[0][0] < ack.upto:
                    self.arena.release(route.slots.popleft()[1])

    def lost(self, link: Link) -> None:
        """A consumer is gone: all its credits and memory come back, and what would go there goes nowhere."""
        self._acks = {where: entry for where, entry in self._acks.items() if entry[0] is not link}
        for jobs in (self.jobs, self.draining):
            for job in jobs.values():
                for route in job.routes:
                    if route.link is link:
                        route.link = None
                        while route.slots:
                            self.arena.release(route.slots.popleft()[1])

    def flush(self) -> set[Link]:
        """Turn what was collected into frames: control's are queued, and links that have output are returned."""
        touched: set[Link] = set()
        if self._emits:
            for emit in self._emits:
                self._send(emit, touched)
            self._emits.clear()
        if self._acks:
            for link, ack in self._acks.values():
                link.send_ack(ack)
                touched.add(link)
            self._acks.clear()
        return touched

    def report(self) -> None:
        """Queue this step's frame, and the answers to questions, for the serving process."""
        step = self._step
        if self.draining:
            for key in [key for key, job in self.draining.items() if not job.holds_memory]:
                del self.draining[key]
                step.released.append(key)
        if step.texts or step.media or step.done or step.failed or step.released or step.fed:
            self._control.send(step)
            self._step = Step()
        for reply in self._replies:
            self._control.send(reply)
        self._replies.clear()

    # ---- inside

    def _send(self, emit: _Emit, touched: set[Link]) -> None:
        """Put a payload on the request's edges, or keep it back on those that publish at the end."""
        now: list[Route] = []
        for route in emit.job.routes:
            if route.link is None:
                continue
            touched.add(route.link)
            if route.edge.mode != "full":
                route.queued -= emit.payload is not None
                now.append(route)
                continue
            if emit.payload is not None:
                route.held.append(emit.payload)
            if emit.end:
                held, route.held = route.held, []
                for payload in held[:-1]:
                    self._put(emit.job.key, payload, False, [route])
                self._put(emit.job.key, held[-1] if held else None, True, [route])
        if now:
            self._put(emit.job.key, emit.payload, emit.end, now)

    def _put(self, key: int, payload: Payload | None, end: bool, routes: list[Route]) -> None:
        metas, data, slot = ((), None, None) if payload is None else pack(payload, self.arena, len(routes))
        for route in routes:
            assert route.link is not None
            chunk = Chunk(
                key,
                route.edge.index,
                route.seq,
                end,
                "" if payload is None else payload.kind,
                {} if payload is None else payload.meta,
                metas,
                data,
                None if slot is None else SlabRef(slot.slab.id, slot.offset, False),
            )
            if slot is not None:
                route.slots.append((route.seq, slot))
            route.seq += 1
            route.link.send_chunk(chunk, self.arena)
