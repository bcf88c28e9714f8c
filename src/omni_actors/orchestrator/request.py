"""The record of one request, in its caller's task.

The readers of the replicas advance the record synchronously (as their
:class:`~omni_actors.stages.listener.RequestListener`), and the caller receives events from it. There is no task,
channel or nursery per request or stage, and at most one wake per turn of a reader.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

import msgspec
import trio

from omni_actors.orchestrator.bisection import RECOVERABLE, CrashHistory
from omni_actors.orchestrator.diverged import Diverged
from omni_actors.orchestrator.estimate import event_bytes
from omni_actors.orchestrator.latest import supersede
from omni_actors.orchestrator.ledger import StageLedger
from omni_actors.orchestrator.owner import RequestObserver, RequestOwner, report_left
from omni_actors.orchestrator.permits import Permit
from omni_actors.orchestrator.streamed_input import StreamedInput
from omni_actors.pipelines.subgraph import Subgraph
from omni_actors.protocol.codec import frame
from omni_actors.protocol.errors import ErrorInfo, OmniError, invalid_request, slow_client
from omni_actors.protocol.frames import Feed, Ledger
from omni_actors.protocol.request import (
    Completed,
    Event,
    MediaChunk,
    Request,
    StageDone,
    StepProgress,
    TextDelta,
    Usage,
)
from omni_actors.protocol.states import RequestState, advance
from omni_actors.stages.replica import StageReplica

log = logging.getLogger("omni_actors.orchestrator")

NO_ATTEMPT = -1
"""The key of a request that is not submitted, or between two attempts."""

_CHECKPOINT_EVERY = 64


class RequestStream:
    """A request and its record: enter it to be admitted, iterate over its events, leave it to end it.

    Entering waits while there is no capacity for the request, and raises :class:`OmniError` if the request is refused.
    Leaving before the end cancels the rest of the request everywhere; leaving neither waits nor can be interrupted.
    """

    def __init__(
        self,
        owner: RequestOwner[RequestStream],
        request: Request,
        id: str,
        observer: RequestObserver | None = None,
        *,
        max_waiting_bytes: int,
    ) -> None:
        self.id = id
        self.number = -1
        """The request's number inside the orchestrator, from admission on."""
        self.key = NO_ATTEMPT
        """The key of the present attempt."""
        self.request = request
        self.state = RequestState.NEW
        self.admitted_at = 0.0
        self.deadline = math.inf
        """Trio time at which the request has to be over."""
        self.usage: dict[str, Usage] = {}
        self.permit: Permit | None = None
        """The capacity that the request holds, from admission on."""
        self.subgraph: Subgraph | None = None
        self.replicas: dict[str, StageReplica] = {}
        """The replicas of the present attempt, by stage."""
        self.ledgers: dict[str, StageLedger] = {}
        """The ledgers of the stages that have reported anything."""
        self.sections: Mapping[str, msgspec.Raw] = {}
        """The request's parameters, as the stages get them."""
        self.media_incarnation = 0
        """The incarnation of the media process that holds the request's media."""
        self.crash_history: CrashHistory | None = None
        """The deaths that the request has seen; ``None`` before the first."""
        self.streamed_input: StreamedInput | None = None
        """The request's streaming input; ``None`` before the first piece."""
        self._owner = owner
        self._max_waiting_bytes = max_waiting_bytes
        self._events: deque[Event] = deque()
        self._waiting_bytes = 0
        self._error: ErrorInfo | None = None
        self._undone = 0
        self._unreleased = 0
        self._task: trio.lowlevel.Task | None = None
        self._received = 0
        self._text_callback: Callable[[TextDelta], bool] | None = None
        self._observer = observer
        self._first_text_observer = observer
        """The observer until the text callback has consumed a delta: one check per delta, and no call."""

    # ---- the caller's side

    async def __aenter__(self) -> Self:
        if self.state is not RequestState.NEW:
            raise RuntimeError("a request can be entered only once; open another request")
        try:
            await self._owner.admit(self)
        except BaseException as error:
            if self._observer is not None:
                report_left(self._observer, error)
            raise
        if self._observer is not None:
            self._observer.admitted()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.state.live:
            log.debug("cancelled", extra={"request": self.id})
            self._end(RequestState.CANCELLED)
            self._abort()
        self._events.clear()
        if self._observer is not None:
            report_left(self._observer, value)

    async def receive(self) -> Event:
        """Wait for the next event and return it; the last one is :class:`Completed`. If cancelled, no event is lost.

        Raises:
            OmniError: The request failed.
            trio.EndOfChannel: The last event has been received, or the block was left meanwhile.
            trio.BusyResourceError: Another task receives.
            RuntimeError: The request has not been entered.
        """
        self._received += 1
        if not self._events and self._task is None and self.state.live:  # as in :meth:`_wait`, without its frame
            self._task = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._abort_wait)
        if not self._events or self._received % _CHECKPOINT_EVERY == 0:
            await self._wait()
        event = self._events.popleft()
        self._waiting_bytes -= event_bytes(event)
        if self._observer is not None:
            self._observer.received(event)
        return event

    async def peek(self) -> Event:
        """Return the next event as :meth:`receive` does, with the same errors, but leave the event in place."""
        if not self._events:
            await self._wait()
        event = self._events[0]
        if self._observer is not None:
            self._observer.received(event)
        return event

    def set_text_callback(self, callback: Callable[[TextDelta], bool]) -> None:
        """Offer each text delta that comes while the caller waits in :meth:`receive` to a callback first.

        A delta for which the callback returns ``True`` is consumed: it is no event, and the caller is not woken. The
        callback runs in a replica's reader; it must not wait and must not raise.
        """
        self._text_callback = callback

    @property
    def waiting(self) -> bool:
        """Whether :meth:`receive` would return an event at once."""
        return bool(self._events)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        try:
            return await self.receive()
        except trio.EndOfChannel:
            raise StopAsyncIteration from None

    async def feed(self, modality: str, kind: str, meta: dict[str, Any] | None, *, end: bool = False) -> None:
        """Give the running request more input of a modality whose entry is a port.

        Waits while too many pieces are not consumed (:attr:`StreamedInput.full`). A request that is over drops the
        input. After ``end`` more input is the caller's mistake (400).
        """
        assert self.subgraph is not None
        entry = self.subgraph.entries.get(modality)
        if entry is None or entry.port is None:
            raise invalid_request(f"Input '{modality}' of this request does not stream.", "input")
        given = self.streamed_input
        if given is None:
            given = self.streamed_input = StreamedInput()
        given.check_open(modality, end=end)
        while self.state.live and given.full:
            await given.moved.park()
        await trio.lowlevel.checkpoint()
        if not self.state.live:
            return
        data = given.keep(entry.stage.name, Feed(self.key, entry.port, kind, meta, end))
        if self.key != NO_ATTEMPT:
            self.replicas[entry.stage.name].send(data)

    # ---- the replicas' side

    def on_text(self, replica: StageReplica, delta: TextDelta) -> None:
        if delta.key != self.key:
            return
        ledger = self.ledgers.get(replica.stage.name) or self._ledger(replica)
        if (new := ledger.text(delta)) is not None:
            self._push(replica, new)

    def on_media(self, replica: StageReplica, chunk: MediaChunk) -> None:
        if chunk.key != self.key:
            return
        try:
            new = self._ledger(replica).media(chunk)
        except Diverged as diverged:
            self.fail(diverged.failure(replica.stage.name).info)
            return
        if new is not None:
            self._push(replica, new)

    def on_progress(self, replica: StageReplica, progress: StepProgress) -> None:
        if progress.key != self.key or not self._ledger(replica).progress(progress):
            return
        if not any(ledger.has_picture(progress.index) for ledger in self.ledgers.values()):
            self._push(replica, progress)

    def on_ledger(self, replica: StageReplica, entry: Ledger) -> None:
        if entry.key == self.key:
            self._ledger(replica).note(entry)
            self._progress(replica)

    def on_done(self, replica: StageReplica, done: StageDone) -> None:
        name = replica.stage.name
        if done.key != self.key or not self.state.live or name in self.usage:
            return
        try:
            if (ledger := self.ledgers.get(name)) is not None:
                ledger.done()
        except Diverged as diverged:
            self.fail(diverged.failure(name).info)
            return
        self.usage[name] = done.usage
        self._progress(replica)
        self._undone -= 1
        if not self._undone:
            self._events.append(Completed(self.usage))
            self._end(RequestState.COMPLETED)

    def on_failed(self, replica: StageReplica, key: int, error: ErrorInfo) -> None:
        if key != self.key or not self.state.live or replica.stage.name in self.usage:
            return
        if error.code in RECOVERABLE:
            self._owner.stage_lost(self, replica, error)
        else:
            self.fail(error)

    def on_released(self, replica: StageReplica, key: int) -> None:
        self._unreleased -= 1
        if not self._unreleased:
            self._settle()
        current = self._unreleased > 0 and key == self.key
        if current or replica.quarantined:
            self._owner.stage_released(self, replica, current=current)

    def on_fed(self, key: int, count: int) -> None:
        if key == self.key and self.streamed_input is not None:
            self.streamed_input.consume(count)

    def fail(self, error: ErrorInfo) -> None:
        """End the request with a typed failure, once; events that came before it are still received."""
        if not self.state.live:
            return
        log.debug("failed: %s", error.message, extra={"request": self.id})
        self._error = error
        self._end(RequestState.FAILED)
        self._abort()

    # ---- inside

    def admit(self, number: int, subgraph: Subgraph, permit: Permit, now: float, deadline: float) -> None:
        """Note that the request is admitted."""
        self.number = number
        self.permit = permit
        self.subgraph = subgraph
        self.state = advance(self.state, RequestState.ADMITTED)
        self.admitted_at = now
        self.deadline = deadline

    def begin(self, key: int, replicas: dict[str, StageReplica]) -> None:
        """Note that an attempt is bound: every stage of the subgraph is about to get its Submit."""
        self.key = key
        self.replicas = replicas
        self._undone = len(replicas)
        self._unreleased += len(replicas)

    def suspend(self) -> None:
        """End the present attempt: later reports about it change nothing. Another attempt may begin."""
        self._abort()
        self.key = NO_ATTEMPT
        self.replicas = {}
        self.usage = {}
        if self.streamed_input is not None:
            self.streamed_input.begin_again()

    def feed_again(self) -> None:
        """Give a new attempt the input that the caller has fed so far."""
        for stage, piece in () if self.streamed_input is None else self.streamed_input.kept:
            self.replicas[stage].send(frame(msgspec.structs.replace(piece, key=self.key)))

    def _ledger(self, replica: StageReplica) -> StageLedger:
        name = replica.stage.name
        return self.ledgers.get(name) or self.ledgers.setdefault(name, StageLedger(replica.stage.recovery))

    def _progress(self, replica: StageReplica) -> None:
        """Tell the owner of a report that has been awaited since a death."""
        if self.crash_history is not None and self.crash_history.awaited_since:
            self._owner.stage_progressed(self, replica)

    def _push(self, replica: StageReplica, event: TextDelta | MediaChunk | StepProgress) -> None:
        if not self.state.live:
            return
        if self.state is RequestState.ADMITTED:
            self.state = advance(self.state, RequestState.RUNNING)
        if self.crash_history is not None:
            self._progress(replica)
        if (
            self._text_callback is not None
            and self._task is not None
            and not self._events
            and type(event) is TextDelta
            and self._text_callback(event)
        ):
            if self._first_text_observer is not None:
                self._first_text_observer.received(event)
                self._first_text_observer = None
            return
        if type(event) is not TextDelta:
            supersede(self._events, event)
        self._events.append(event)
        self._waiting_bytes += event_bytes(event)
        if self._waiting_bytes > self._max_waiting_bytes:
            self._events.clear()
            self.fail(slow_client().info)
        else:
            self._wake()

    def _end(self, state: RequestState) -> None:
        self.state = advance(self.state, state)
        self._owner.ended(self)
        if self.streamed_input is not None:
            self.streamed_input.moved.unpark_all()
        self._wake()
        self._settle()

    def _settle(self) -> None:
        """Release a request that is over, once every stage of every attempt has released it or died."""
        if not self._unreleased and self.state.terminal:
            self.state = advance(self.state, RequestState.RELEASED)
            self._owner.released(self)

    def _abort(self) -> None:
        for replica in self.replicas.values():
            replica.abort(self.key)

    async def _wait(self) -> None:
        """Return when an event can be received, after a checkpoint; else raise the failure, or the end."""
        if self._task is not None:
            raise trio.BusyResourceError("another task receives from this request")
        if self._events:
            await trio.lowlevel.checkpoint()
        elif self._error is None and self.state.live:
            self._task = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._abort_wait)
        if self._events:
            return
        if self._error is not None:
            if self._observer is not None:
                self._observer.failed()
            raise OmniError(self._error)
        if self.state is RequestState.NEW:
            raise RuntimeError("enter the request first: 'async with omni.open(request) as stream:'")
        raise trio.EndOfChannel  # the block may also have been left in the meantime

    def _wake(self) -> None:
        if self._task is not None:
            trio.lowlevel.reschedule(self._task)
            self._task = None

    def _abort_wait(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED
