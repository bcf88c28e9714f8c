"""Where an engine's output goes: to the client by way of the serving process, and to other workers by links.

It keeps the requests of this worker (:class:`Job`) with their credits, and collects what one step makes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from omni_actors.connectors.device import Exports
from omni_actors.connectors.link import Link
from omni_actors.connectors.payload import Payload, TensorSpecs, blank_payload
from omni_actors.connectors.shared_memory import Arena
from omni_actors.protocol.codec import FrameTooLarge
from omni_actors.protocol.errors import ErrorInfo, out_of_memory, stage_failed
from omni_actors.protocol.frames import ANY_KIND, Ack, Ledger, Reply, Step
from omni_actors.protocol.request import MediaChunk, StageDone, StageFailed, TextDelta, Usage
from omni_actors.worker.checks import OutputError
from omni_actors.worker.control import Control
from omni_actors.worker.departures import NO_MEMORY, UNSENDABLE, Departures
from omni_actors.worker.jobs import Job, Source
from omni_actors.worker.returned import payload_problem, struct_problem, usage_problem

log = logging.getLogger("omni_actors.worker")

_FULL_STEP = 4 << 20
"""Bytes of media in one Step frame; with more than that, each piece goes in a frame of its own."""


class Outlet:
    """The :class:`~omni_actors.worker.engine.Outbox` of a worker's engine."""

    def __init__(
        self,
        stage: str,
        control: Control,
        arena: Arena,
        abort: Callable[[int], None],
        exports: Exports | None = None,
        maker: str = "the engine",
        check: bool = True,
    ) -> None:
        """``abort`` has the engine forget a request whose output cannot be sent. ``exports`` is for payloads that may
        stay on the device. ``maker`` is what messages call the engine. ``check`` says to look at its payloads."""
        self.departures = Departures(control, arena, exports, self._unsendable)
        self._stage = stage
        self._abort = abort
        self._maker = maker
        self._check = check
        self._wrong: dict[int, OutputError] = {}
        self.jobs: dict[int, Job] = {}
        """Requests that the engine holds."""
        self.draining: dict[int, Job] = {}
        """Requests that are over here, but whose payloads have readers still."""
        self.asked: set[int] = set()
        """Questions without an answer."""
        self._control = control
        self._step = Step()
        self._done: list[tuple[Job, StageDone]] = []
        self._acks: dict[tuple[int, int], tuple[Link, Ack]] = {}

    # ---- the Outbox

    def ready(self, key: int) -> bool:
        job = self.jobs.get(key)
        if job is None or not job.routes:
            return True
        return job.ready and not (self.departures.pressed and job.holds_memory)

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
        if job is None:
            return blank_payload(kind, meta, specs)
        return self.departures.allocate(job, kind, meta, specs)

    def emit(self, key: int, payload: Payload) -> None:
        job = self.jobs.get(key)
        if job is None or not job.routes:
            return
        problem = payload_problem(payload) if self._check else None
        problem = problem or _misdirected(payload, job)
        if problem is None:
            self.departures.add(job, payload)
        else:
            self._refuse(key, "emit", problem)

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
        if (problem := usage_problem(usage)) is not None:
            self._refuse(key, "finish", problem)
            return
        if job.routes:
            self.departures.end(job)
        self._done.append((job, StageDone(key, usage)))
        log.debug("done key=%d", key, extra={"request": job.request_id})
        self.retire(job, finished=True)

    def fail(self, key: int, error: ErrorInfo) -> None:
        job = self.jobs.get(key)
        if job is None:
            return
        if (problem := struct_problem(error, ErrorInfo)) is not None:
            error = stage_failed(self._stage, f"{self._named('fail', problem)}.").info
        self._step.failed.append(StageFailed(key, error))
        log.debug("failed key=%d: %s", key, error.message, extra={"request": job.request_id})
        self.retire(job)

    def reply(self, query: int, value: Any, error: ErrorInfo | None = None) -> None:
        self.asked.discard(query)
        try:
            self._control.send(Reply(query, value, error))
        except UNSENDABLE as problem:
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
            self.departures.drop(job)
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
        self.departures.acknowledged(job, ack)

    def lost(self, link: Link) -> None:
        """A consumer is gone: all its credits and memory come back, and what would go there goes nowhere."""
        self.departures.lost(link, (*self.jobs.values(), *self.draining.values()))

    @property
    def due(self) -> bool:
        """Whether :meth:`flush` has payloads that the control socket let go since the last one."""
        return self.departures.due

    def flush(self) -> set[Link]:
        """Queue what was collected on its links, and return those."""
        touched: set[Link] = set()
        departures = self.departures
        while self._wrong:  # not before: an engine is not told to forget a request in the middle of its own step
            self._unsendable(*self._wrong.popitem())
        if departures.made:
            self._confide()
        if departures.pending:
            self._control.flush()
            departures.flush(touched)
        if self._acks:
            for link, ack in self._acks.values():
                link.send_ack(ack)
                touched.add(link)
            self._acks.clear()
        return touched

    def _confide(self) -> None:
        """What was chosen leaves before anything that follows from it goes to another worker: a new attempt then
        repeats it, and does not contradict what the client has by way of that worker. While the serving process is so
        slow to read that the socket does not take it, what follows stays here."""
        step = self._step
        if step.texts or step.ledger:
            told = Step(texts=step.texts, ledger=step.ledger)
            step.texts, step.ledger = [], []
            try:
                self._control.send(told)
            except UNSENDABLE:
                self._tell_one_by_one(told)

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
        if sum(len(chunk.data) for chunk in step.media) <= _FULL_STEP:
            try:
                self._control.send(step)
                return
            except UNSENDABLE:
                pass
        self._tell_one_by_one(step)
        failed, self._step.failed = self._step.failed, []
        keys = {it.key for it in failed}
        done = [it for it in step.done if it.key not in keys]
        self._control.send(Step(done=done, failed=step.failed + failed, released=step.released, fed=step.fed))

    def counters(self) -> dict[str, float]:
        """Gauges of requests, credits and memory; what ends in ``_total`` only grows."""
        jobs = (*self.jobs.values(), *self.draining.values())
        return {
            "jobs": len(jobs),
            "credits_outstanding": sum(job.credits for job in jobs),
            **self.departures.counters(),
        }

    # ---- inside

    def _unsendable(self, key: int, problem: Exception) -> None:
        """A payload or delta of this request has no encoding, is too large, or finds no memory: the request fails,
        nothing else does."""
        job = self.jobs.get(key)
        held = job or self.draining.get(key)
        log.error("output cannot be sent: %s", problem, extra={"request": held.request_id if held else None})
        self._done = [(it, done) for it, done in self._done if it.key != key]
        error = out_of_memory(self._stage)
        if not isinstance(problem, NO_MEMORY):
            why = f"{problem}." if isinstance(problem, OutputError) else "its output cannot be sent"
            error = stage_failed(self._stage, why)
        self._step.failed.append(StageFailed(key, error.info))
        if job is not None:
            self._abort(key)
            self.retire(job)
        elif held is not None:
            held.dropped = True
            self.departures.drop(held)

    def _refuse(self, key: int, call: str, problem: tuple[str, str]) -> None:
        """Note that the engine said something wrong of this request: the request fails at the end of the step."""
        self._wrong.setdefault(key, OutputError(self._named(call, problem)))

    def _named(self, call: str, problem: tuple[str, str]) -> str:
        got, expected = problem
        return f"{self._maker} gave Outbox.{call} {got}; expected {expected}"

    def _tell_one_by_one(self, step: Step) -> None:
        """Each event in a frame of its own: for what is too much together, and to find out whose event cannot be sent
        at all. Of a request of which one cannot, nothing more is told but that it has failed."""
        events: list[tuple[str, Any, type[Any], Step]] = []
        events += [("text", it, TextDelta, Step(texts=[it])) for it in step.texts]
        events += [("ledger", it, Ledger, Step(ledger=[it])) for it in step.ledger]
        events += [("media", it, MediaChunk, Step(media=[it])) for it in step.media]
        failed: set[int] = set()
        for call, it, kind, event in events:
            if it.key in failed:
                continue
            try:
                self._control.send(event)
            except UNSENDABLE as problem:
                failed.add(it.key)
                wrong = None if isinstance(problem, FrameTooLarge) else struct_problem(it, kind)
                self._unsendable(it.key, problem if wrong is None else OutputError(self._named(call, wrong)))


def _misdirected(payload: Payload, job: Job) -> tuple[str, str] | None:
    """Say what is wrong with a payload's kind for the edges that it goes to."""
    for route in job.routes:
        edge = route.edge
        if payload.kind != edge.kind and edge.kind not in ANY_KIND:
            got = f"a payload of kind '{payload.kind}' for the edge to '{edge.target}.{edge.port}'"
            return got, f"kind '{edge.kind}'"
    return None
