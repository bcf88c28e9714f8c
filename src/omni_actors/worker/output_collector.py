"""The output collector: an engine's output goes to the client through the serving process, and to other workers by
links.

The collector keeps the requests of this worker (:class:`~omni_actors.worker.credits.RequestCredits`) with their
credits, and gathers the output of one step.
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
from omni_actors.protocol.request import MediaChunk, StageDone, StageFailed, StepProgress, TextDelta, Usage
from omni_actors.worker.checks import OutputError
from omni_actors.worker.control_socket import ControlSocket
from omni_actors.worker.credits import RequestCredits, Source
from omni_actors.worker.pieces import PIECE_BYTES, pieces_of
from omni_actors.worker.returned import payload_problem, struct_problem, usage_problem
from omni_actors.worker.send_queue import NO_MEMORY, UNSENDABLE, SendQueue

log = logging.getLogger("omni_actors.worker")

_FULL_STEP = 4 << 20
"""Bytes of media in one Step frame. With more media than that, each piece goes in a frame of its own."""


class OutputCollector:
    """The :class:`~omni_actors.worker.engine.Outbox` of a worker's engine."""

    def __init__(
        self,
        stage: str,
        control: ControlSocket,
        arena: Arena,
        abort: Callable[[int], None],
        exports: Exports | None = None,
        maker: str = "the engine",
        check: bool = True,
    ) -> None:
        """Collect the output of ``stage`` for ``control`` and for the links.

        ``abort`` makes the engine forget a request whose output cannot be sent. ``exports`` is for payloads that may
        stay on the device. ``maker`` is the name of the engine in messages. ``check`` enables checks of the engine's
        payloads.
        """
        self.send_queue = SendQueue(control, arena, exports, self._unsendable)
        self._stage = stage
        self._abort = abort
        self._maker = maker
        self._check = check
        self._wrong: dict[int, OutputError] = {}
        self.requests: dict[int, RequestCredits] = {}
        """Requests that the engine holds, by key."""
        self.draining: dict[int, RequestCredits] = {}
        """Requests that are over here, but whose payloads still have readers, by key."""
        self.asked: set[int] = set()
        """Queries without a reply, by id."""
        self._control = control
        self._step = Step()
        self._done: list[tuple[RequestCredits, StageDone]] = []
        self._acks: dict[tuple[int, int], tuple[Link, Ack]] = {}

    # ---- the engine's side (Outbox)

    def ready(self, key: int) -> bool:
        request = self.requests.get(key)
        if request is None or not request.routes:
            return True
        return request.ready and not (self.send_queue.pressed and request.holds_memory)

    def text(self, delta: TextDelta) -> None:
        request = self.requests.get(delta.key)
        if request is not None and request.visible:
            self._step.texts.append(delta)

    def media(self, chunk: MediaChunk) -> None:
        request = self.requests.get(chunk.key)
        if request is None or not request.visible:
            return
        if chunk.modality == "image" and len(chunk.data) > PIECE_BYTES:
            self._step.media += pieces_of(chunk)
        else:
            self._step.media.append(chunk)

    def progress(self, progress: StepProgress) -> None:
        if progress.key in self.requests:
            self._step.progress.append(progress)

    def ledger(self, key: int, index: int, tokens: list[int], data: bytes = b"") -> None:
        if key in self.requests:
            self._step.ledger.append(Ledger(key, index, tokens, data))

    def allocate(self, key: int, kind: str, meta: dict[str, Any], specs: TensorSpecs) -> Payload:
        request = self.requests.get(key)
        if request is None:
            return blank_payload(kind, meta, specs)
        return self.send_queue.allocate(request, kind, meta, specs)

    def emit(self, key: int, payload: Payload) -> None:
        request = self.requests.get(key)
        if request is None or not request.routes:
            return
        problem = payload_problem(payload) if self._check else None
        problem = problem or _misdirected(payload, request)
        if problem is None:
            self.send_queue.add(request, payload)
        else:
            self._refuse(key, "emit", problem)

    def consumed(self, key: int, port: str) -> None:
        request = self.requests.get(key)
        if request is None:
            return
        for source in request.sources.values():
            if source.edge.port == port and source.queued:
                source.queued.popleft()
                self.settle(request, source)
                return
        self.feed_consumed(request)

    def finish(self, key: int, usage: Usage) -> None:
        request = self.requests.get(key)
        if request is None:
            return
        if (problem := usage_problem(usage)) is not None:
            self._refuse(key, "finish", problem)
            return
        if request.routes:
            self.send_queue.end(request)
        self._done.append((request, StageDone(key, usage)))
        log.debug("done key=%d", key, extra={"request": request.request_id})
        self.retire(request, finished=True)

    def fail(self, key: int, error: ErrorInfo) -> None:
        request = self.requests.get(key)
        if request is None:
            return
        if (problem := struct_problem(error, ErrorInfo)) is not None:
            error = stage_failed(self._stage, f"{self._named('fail', problem)}.").info
        self._step.failed.append(StageFailed(key, error))
        log.debug("failed key=%d: %s", key, error.message, extra={"request": request.request_id})
        self.retire(request)

    def reply(self, query: int, value: Any, error: ErrorInfo | None = None) -> None:
        self.asked.discard(query)
        try:
            self._control.send(Reply(query, value, error))
        except UNSENDABLE as problem:
            log.error("a reply cannot be sent: %s", problem)
            info = ErrorInfo(message="The reply cannot be sent.", code="unsendable", stage=self._stage)
            self._control.send(Reply(query, None, info))

    # ---- the loop's side

    @property
    def busy(self) -> bool:
        """Whether somebody waits for output, memory or a reply of this worker."""
        return bool(self.requests or self.draining or self.asked)

    def retire(self, request: RequestCredits, *, finished: bool = False) -> None:
        """Take no more output of a request. Payloads already announced to readers stay until the readers release them;
        unless the request is ``finished``, the rest of its memory is freed at once."""
        del self.requests[request.key]
        if not finished:
            request.dropped = True
            self.send_queue.drop(request)
        for source in request.sources.values():
            if source.seq > source.acked:  # chunks that are not consumed by now will never be
                self.ack(source.link, request.key, source.edge.index, source.seq)
        request.sources.clear()
        self.draining[request.key] = request

    def settle(self, request: RequestCredits, source: Source) -> None:
        """Give back the credits of consumed chunks."""
        upto = source.settle()
        if upto is not None:
            self.ack(source.link, request.key, source.edge.index, upto)

    def ack(self, link: Link, key: int, edge: int, upto: int) -> None:
        """Acknowledge chunks with this step's write; a later acknowledgement replaces an earlier one."""
        self._acks[key, edge] = (link, Ack(key, edge, upto))

    def feed_consumed(self, request: RequestCredits) -> None:
        """Count one consumed piece of streaming input."""
        if request.feeds_consumed < request.feeds:
            request.feeds_consumed += 1
            self._step.fed.append((request.key, request.feeds_consumed))

    def acknowledged(self, ack: Ack) -> None:
        """Take back the credits and the memory that a consumer acknowledges."""
        request = self.requests.get(ack.key) or self.draining.get(ack.key)
        if request is None:
            return
        self.send_queue.acknowledged(request, ack)

    def lost(self, link: Link) -> None:
        """Take back all credits and memory of a vanished consumer, and drop further payloads for the consumer."""
        self.send_queue.lost(link, (*self.requests.values(), *self.draining.values()))

    @property
    def due(self) -> bool:
        """Whether the control socket has released payloads for :meth:`flush` since the last flush."""
        return self.send_queue.due

    def flush(self) -> set[Link]:
        """Queue the collected output on the links, and return the links that have new output."""
        touched: set[Link] = set()
        send_queue = self.send_queue
        while self._wrong:  # only now: an engine must not be told to forget a request in the middle of its own step
            self._unsendable(*self._wrong.popitem())
        if send_queue.made:
            self._flush_ledger_first()
        if send_queue.pending:
            self._control.flush()
            send_queue.flush(touched)
        if self._acks:
            for link, ack in self._acks.values():
                link.send_ack(ack)
                touched.add(link)
            self._acks.clear()
        return touched

    def _flush_ledger_first(self) -> None:
        """Send the chosen tokens before any payload that follows from those tokens.

        A new attempt then repeats the tokens and cannot contradict the client's output from another worker. While the
        serving process reads so slowly that the socket does not take the tokens, the payloads stay here.
        """
        step = self._step
        if step.texts or step.ledger:
            chosen = Step(texts=step.texts, ledger=step.ledger)
            step.texts, step.ledger = [], []
            try:
                self._control.send(chosen)
            except UNSENDABLE:
                self._send_one_by_one(chosen)

    def report(self) -> None:
        """Queue the step's frame for the serving process. Call this method after the links are flushed: a stage is done
        when the output has left the process, so that the death of the worker after the report loses no output."""
        step = self._step
        if self._done:
            step.done += [done for request, done in self._done if request.written]
            self._done = [(request, done) for request, done in self._done if not request.written]
        if self.draining:
            for key in [key for key, request in self.draining.items() if request.written and not request.holds_memory]:
                del self.draining[key]
                step.released.append(key)
        if not (
            step.texts
            or step.media
            or step.done
            or step.failed
            or step.released
            or step.fed
            or step.ledger
            or step.progress
        ):
            return
        self._step = Step()
        if sum(len(chunk.data) for chunk in step.media) <= _FULL_STEP:
            try:
                self._control.send(step)
                return
            except UNSENDABLE:
                pass
        self._send_one_by_one(step)
        failed, self._step.failed = self._step.failed, []
        keys = {it.key for it in failed}
        done = [it for it in step.done if it.key not in keys]
        self._control.send(Step(done=done, failed=step.failed + failed, released=step.released, fed=step.fed))

    def counters(self) -> dict[str, float]:
        """Return gauges of requests, credits and memory. Counters, whose names end in ``_total``, only grow."""
        requests = (*self.requests.values(), *self.draining.values())
        return {
            "jobs": len(requests),
            "credits_outstanding": sum(request.credits for request in requests),
            **self.send_queue.counters(),
        }

    # ---- inside

    def _unsendable(self, key: int, problem: Exception) -> None:
        """Fail a request whose payload or delta has no encoding, is too large, or finds no memory. Other requests go
        on."""
        request = self.requests.get(key)
        held = request or self.draining.get(key)
        log.error("output cannot be sent: %s", problem, extra={"request": held.request_id if held else None})
        self._done = [(it, done) for it, done in self._done if it.key != key]
        error = out_of_memory(self._stage)
        if not isinstance(problem, NO_MEMORY):
            why = f"{problem}." if isinstance(problem, OutputError) else "its output cannot be sent"
            error = stage_failed(self._stage, why)
        self._step.failed.append(StageFailed(key, error.info))
        if request is not None:
            self._abort(key)
            self.retire(request)
        elif held is not None:
            held.dropped = True
            self.send_queue.drop(held)

    def _refuse(self, key: int, call: str, problem: tuple[str, str]) -> None:
        """Note a wrong call of the engine about this request: the request fails at the end of the step."""
        self._wrong.setdefault(key, OutputError(self._named(call, problem)))

    def _named(self, call: str, problem: tuple[str, str]) -> str:
        got, expected = problem
        return f"{self._maker} gave Outbox.{call} {got}; expected {expected}"

    def _send_one_by_one(self, step: Step) -> None:
        """Send each event in a frame of its own: when all events together are too large, and to find the event that
        cannot be sent at all. After such an event the request gets no further events but the failure."""
        events: list[tuple[str, Any, type[Any], Step]] = []
        events += [("text", it, TextDelta, Step(texts=[it])) for it in step.texts]
        events += [("ledger", it, Ledger, Step(ledger=[it])) for it in step.ledger]
        events += [("progress", it, StepProgress, Step(progress=[it])) for it in step.progress]
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


def _misdirected(payload: Payload, request: RequestCredits) -> tuple[str, str] | None:
    """Return (got, expected) for a payload whose kind does not fit the request's edges, else ``None``."""
    for route in request.routes:
        edge = route.edge
        if payload.kind != edge.kind and edge.kind not in ANY_KIND:
            got = f"a payload of kind '{payload.kind}' for the edge to '{edge.target}.{edge.port}'"
            return got, f"kind '{edge.kind}'"
    return None
