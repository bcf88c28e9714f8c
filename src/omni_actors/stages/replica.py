"""StageReplica: the actor that stands for a worker in the serving process.

It owns the worker's life (spawn, handshake, death, restart with capped backoff) and its control channel. A reader
advances the requests' records synchronously: no task, channel or nursery per stage of a request. A worker's death is a
value: every request in it is told, and the replica starts the next incarnation.
"""

from __future__ import annotations

import enum
import itertools
import logging
import os
from collections.abc import Callable
from typing import Any, Protocol

import trio

from omni_actors.actors.process import Launcher, python_module
from omni_actors.pipelines.plan import Plan, StagePlan
from omni_actors.protocol.codec import ProtocolError, frame, up_reader
from omni_actors.protocol.errors import ErrorInfo, OmniError, deadline_exceeded, stage_died, stage_unavailable
from omni_actors.protocol.frames import (
    PROTOCOL_VERSION,
    Abort,
    Fatal,
    Progress,
    Query,
    Ready,
    Reply,
    Step,
    Stop,
    Up,
    Welcome,
    Wire,
)
from omni_actors.protocol.request import MediaChunk, StageDone, TextDelta
from omni_actors.stages.channel import Channel

log = logging.getLogger("omni_actors.stages")


class State(enum.Enum):
    """Where a replica is in its life: starting → ready → draining → dead (→ starting)."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    DEAD = "dead"


class Participant(Protocol):
    """A request as the replicas that serve it see it. Everything here is synchronous and never raises."""

    def on_text(self, delta: TextDelta) -> None: ...
    def on_media(self, chunk: MediaChunk) -> None: ...
    def on_done(self, replica: StageReplica, done: StageDone) -> None: ...
    def on_failed(self, replica: StageReplica, error: ErrorInfo) -> None: ...
    def on_released(self, replica: StageReplica) -> None: ...
    def on_fed(self, count: int) -> None: ...


class _Pending:
    """A question that waits for its answer."""

    __slots__ = ("event", "reply")

    def __init__(self) -> None:
        self.event = trio.Event()
        self.reply: Reply | None = None


class StageReplica:
    """One replica of one stage through all its incarnations."""

    def __init__(
        self,
        plan: Plan,
        stage: StagePlan,
        index: int,
        launcher: Launcher,
        *,
        log_level: str = "INFO",
        on_ready: Callable[[StageReplica], None],
        on_change: Callable[[], None],
    ) -> None:
        self.plan = plan
        self.stage = stage
        self.index = index
        self.incarnation = 0
        self.state = State.DEAD
        self.progress = ""
        self.info: dict[str, Any] = {}
        self.last_error: ErrorInfo | None = None
        self.was_ready = False
        self.links: dict[tuple[str, int], int] = {}
        """Link ids by (other stage, other replica), for both directions."""
        self.requests: dict[int, Participant] = {}
        self.pid: int | None = None
        self._launcher = launcher
        self._log_level = log_level
        self._on_ready = on_ready
        self._on_change = on_change
        self._channel: Channel | None = None
        self._queries: dict[int, _Pending] = {}
        self._query_ids = itertools.count(1)
        self._stopping = False
        self._pause = trio.CancelScope()

    @property
    def name(self) -> str:
        """``stage#replica@incarnation``, for logs."""
        return f"{self.stage.name}#{self.index}@{self.incarnation}"

    @property
    def live(self) -> bool:
        return self.state is State.READY

    # ---- requests

    def submit(self, key: int, participant: Participant, data: bytes, *, later: bool) -> None:
        """Send an encoded Submit and have the participant told what becomes of it. The replica must be live."""
        assert self._channel is not None
        self.requests[key] = participant
        self._channel.send(data, later=later)

    def send(self, data: bytes) -> None:
        """Send an encoded frame of a request, if the worker is there."""
        if self._channel is not None:
            self._channel.send(data)

    def abort(self, key: int) -> None:
        """Have the worker forget a request; ``on_released`` follows (also when the worker dies)."""
        if key in self.requests and self._channel is not None:
            self._channel.send(frame(Abort(key)))

    def wire(self, link: int, other: StageReplica, fd: int) -> None:
        """Hand the worker one end of a link. ``fd`` is closed here."""
        if self._channel is None:
            os.close(fd)
            return
        self.links[other.stage.name, other.index] = link
        self._channel.send_fd(frame(Wire(link, other.name)), fd)

    async def query(self, what: str, args: dict[str, Any] | None = None, *, timeout_s: float | None = None) -> Any:
        """Ask the worker. Raises its typed error, ``stage_unavailable`` without a live worker, ``stage_died`` when it
        dies meanwhile, ``deadline_exceeded`` after ``timeout_s`` (default: the plan's ``query_timeout_s``)."""
        if self._channel is None or self.state is not State.READY:
            raise stage_unavailable(self.stage.name)
        id = next(self._query_ids)
        pending = self._queries[id] = _Pending()
        try:
            self._channel.send(frame(Query(id, what, args or {})))
            with trio.move_on_after(timeout_s or self.plan.limits.query_timeout_s):
                await pending.event.wait()
        finally:
            self._queries.pop(id, None)
        if not pending.event.is_set():
            raise deadline_exceeded(f"Stage '{self.stage.name}' did not answer '{what}' in time.")
        if pending.reply is None:
            raise stage_died(self.stage.name)
        if pending.reply.error is not None:
            raise OmniError(pending.reply.error)
        return pending.reply.value

    # ---- life

    async def run(self) -> None:
        """Keep a worker alive until cancelled (or until the very first start fails). A later death is followed by a
        restart after a pause that doubles with each failure in a row, up to a cap."""
        failures = 0
        limits = self.plan.limits
        while True:
            self.incarnation += 1
            started = trio.current_time()
            error = await self._live_once()
            if self._stopping:
                return
            self.last_error = error
            if not self.was_ready:
                log.error("%s could not start: %s", self.name, error.message)
                self._on_change()
                return
            # A life that lasted longer than the longest pause was a good one: its end is the first failure again.
            failures = 1 if trio.current_time() - started > limits.restart_delay_max_s else failures + 1
            pause = min(limits.restart_delay_s * 2 ** (failures - 1), limits.restart_delay_max_s)
            log.warning("%s ended (%s); next start in %.1f s", self.name, error.message, pause)
            self._on_change()
            with self._pause:
                await trio.sleep(pause)
            if self._stopping:
                return
            self._pause = trio.CancelScope()

    def stop(self) -> None:
        """Ask the worker to finish; :meth:`run` returns once it has (or has been killed)."""
        self._stopping = True
        self._pause.cancel()
        if self._channel is not None:
            self.state = State.DRAINING
            self._channel.send(frame(Stop(self.plan.limits.stop_grace_s)))

    async def _live_once(self) -> ErrorInfo:
        """One incarnation, from spawn to death; returns why it ended."""
        self.state = State.STARTING
        self.progress = "starting"
        self._on_change()
        hello = self.plan.hello(
            self.stage.name, self.index, self.incarnation, log_level=self._log_level, parent_pid=os.getpid()
        )
        environment = {**os.environ, **self.stage.environment}
        child = self._launcher.spawn(python_module("omni_actors.worker"), name=self.name, env=environment)
        self.pid = child.pid
        channel = self._channel = Channel(child.sock)
        error = ErrorInfo(message="the worker closed its channel", stage=self.stage.name)
        try:
            async with child:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(channel.run_writer)
                    channel.send(frame(hello))
                    try:
                        fatal = await self._serve(channel)
                        error = fatal or error
                    except trio.TooSlowError:
                        error = ErrorInfo(message=f"not ready after {self.stage.start_timeout_s:g} s")
                    except ProtocolError as broken:
                        error = ErrorInfo(message=f"protocol error: {broken}")
                    nursery.cancel_scope.cancel()
                self._dead()
                if not self._stopping:
                    child.kill()
                death = await child.stop(self.plan.limits.stop_grace_s)
                if death.signal is not None or death.code:
                    error = ErrorInfo(message=f"{error.message}; {death}", stage=self.stage.name)
        finally:
            self._dead()
        return error

    async def _serve(self, channel: Channel) -> ErrorInfo | None:
        """Read the channel until its end. Returns the worker's last word, if it had one."""
        reader = up_reader()
        with trio.fail_after(self.stage.start_timeout_s) as starting:
            while True:
                data = await channel.receive()
                if not data:
                    return None
                for message in reader.feed(data):
                    if type(message) is Step:
                        self._step(message)
                        continue
                    fatal = self._handle(message)
                    if fatal is not None:
                        return fatal
                    if self.state is State.READY:
                        starting.deadline = float("inf")

    def _handle(self, message: Up) -> ErrorInfo | None:
        match message:
            case Welcome():
                if message.version != PROTOCOL_VERSION:
                    raise ProtocolError(f"the worker speaks protocol {message.version}")
            case Progress():
                self.progress = message.text
                self._on_change()
            case Ready():
                self.info = message.info
                self.state = State.READY
                self.progress = "ready"
                self.was_ready = True
                self.last_error = None
                log.info("%s is ready (pid %s)", self.name, self.pid)
                self._on_ready(self)
                self._on_change()
            case Reply():
                pending = self._queries.get(message.id)
                if pending is not None:
                    pending.reply = message
                    pending.event.set()
            case Fatal():
                return message.error
            case _:
                raise ProtocolError(f"unexpected {type(message).__name__}")
        return None

    def _step(self, step: Step) -> None:
        requests = self.requests
        for delta in step.texts:
            if (it := requests.get(delta.key)) is not None:
                it.on_text(delta)
        for chunk in step.media:
            if (it := requests.get(chunk.key)) is not None:
                it.on_media(chunk)
        for done in step.done:
            if (it := requests.get(done.key)) is not None:
                it.on_done(self, done)
        for failed in step.failed:
            if (it := requests.get(failed.key)) is not None:
                it.on_failed(self, failed.error)
        for key, count in step.fed:
            if (it := requests.get(key)) is not None:
                it.on_fed(count)
        for key in step.released:
            if (it := requests.pop(key, None)) is not None:
                it.on_released(self)

    def _dead(self) -> None:
        """Tell everybody who waits for this incarnation. Idempotent."""
        if self._channel is None:
            return
        self.state = State.DEAD
        self.pid = None
        self._channel.close()
        self._channel = None
        self.links.clear()
        requests, self.requests = self.requests, {}
        error = stage_died(self.stage.name).info
        for participant in requests.values():
            participant.on_failed(self, error)
            participant.on_released(self)
        queries, self._queries = self._queries, {}
        for pending in queries.values():
            pending.event.set()
        self._on_change()
