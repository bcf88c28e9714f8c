"""StageReplica: the actor that stands for a worker in the serving process.

:class:`StageReplica` is its address, which outlives the worker's incarnations; :class:`Incarnation` is one life, an
actor under the pool's supervisor. A reader advances the requests' records synchronously: no task, channel or nursery
per stage of a request. A worker's death is a value: every request in it is told, and the next life begins.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
from collections.abc import Awaitable, Callable
from typing import Any, Never, Protocol

import msgspec
import trio

from omni_actors.actors.actor import Actor
from omni_actors.actors.errors import ProcessDied
from omni_actors.actors.process import ChildProcess, Death, Launcher, python_module
from omni_actors.pipelines.plan import Plan, StagePlan
from omni_actors.protocol.codec import FrameTooLarge, ProtocolError, frame, up_reader
from omni_actors.protocol.errors import (
    ErrorInfo,
    OmniError,
    deadline_exceeded,
    stage_died,
    stage_unavailable,
    too_large,
)
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
    TcpEnd,
    Unlinked,
    Up,
    Welcome,
    Wire,
)
from omni_actors.protocol.request import MediaChunk, StageDone, TextDelta
from omni_actors.protocol.states import ReplicaState, advance
from omni_actors.stages.channel import Channel

log = logging.getLogger("omni_actors.stages")


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
        on_unlinked: Callable[[StageReplica, Unlinked], Awaitable[None]],
        on_change: Callable[[], None],
    ) -> None:
        self.plan = plan
        self.stage = stage
        self.index = index
        self.incarnation = 0
        self.state = ReplicaState.DEAD
        self.progress = ""
        self.info: dict[str, Any] = {}
        self.last_error: ErrorInfo | None = None
        self.was_ready = False
        self.links: dict[tuple[str, int], int] = {}
        """Link ids by (other stage, other replica), for both directions."""
        self.address: tuple[str, int] | None = None
        """Where its worker is called for links by TCP."""
        self.requests: dict[int, Participant] = {}
        self.pid: int | None = None
        self._launcher = launcher
        self._log_level = log_level
        self._on_ready = on_ready
        self._on_unlinked = on_unlinked
        self._on_change = on_change
        self._channel: Channel | None = None
        self._child: ChildProcess | None = None
        self._queries: dict[int, _Pending] = {}
        self._query_ids = itertools.count(1)

    @property
    def name(self) -> str:
        """``stage#replica@incarnation``, for logs."""
        return f"{self.stage.name}#{self.index}@{self.incarnation}"

    @property
    def live(self) -> bool:
        return self.state is ReplicaState.READY

    # ---- requests

    def submit(self, key: int, participant: Participant, data: bytes, *, later: bool) -> None:
        """Send an encoded Submit and have the participant told what becomes of it. The replica must be live."""
        assert self._channel is not None
        self.requests[key] = participant
        self._channel.send(data, later=later)

    def send(self, data: bytes) -> None:
        """Send an encoded frame, if the worker is there."""
        if self._channel is not None:
            self._channel.send(data)

    def abort(self, key: int) -> None:
        """Have the worker forget a request; ``on_released`` follows (also when the worker dies)."""
        if key in self.requests and self._channel is not None:
            self._channel.send(frame(Abort(key)))

    def wire(self, link: int, other: StageReplica, end: int | TcpEnd) -> None:
        """Hand the worker one end of a link: a descriptor, which is closed here, or what it must know for TCP."""
        if self._channel is None:
            if isinstance(end, int):
                os.close(end)
            return
        self.links[other.stage.name, other.index] = link
        if isinstance(end, int):
            self._channel.send_fd(frame(Wire(link, other.name)), end)
        else:
            self._channel.send(frame(Wire(link, other.name, end)))

    def unwire(self, other: StageReplica, link: int) -> bool:
        """Forget a link that is broken; whether it is the one that is used."""
        if self.links.get((other.stage.name, other.index)) != link:
            return False
        del self.links[other.stage.name, other.index]
        return True

    async def query(self, what: str, args: dict[str, Any] | None = None, *, timeout_s: float | None = None) -> Any:
        """Ask the worker. Raises its typed error, ``stage_unavailable`` without a live worker, ``stage_died`` when it
        dies meanwhile, ``deadline_exceeded`` after ``timeout_s`` (default: the plan's ``query_timeout_s``)."""
        if self._channel is None or self.state is not ReplicaState.READY:
            raise stage_unavailable(self.stage.name)
        id = next(self._query_ids)
        pending = self._queries[id] = _Pending()
        try:
            try:
                self._channel.send(frame(Query(id, what, args or {})))
            except FrameTooLarge as error:
                raise too_large(f"The question is too large: {error}.") from None
            with trio.move_on_after(self.plan.limits.query_timeout_s if timeout_s is None else timeout_s):
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

    def begin(self) -> Incarnation:
        """The actor of the next life: the factory that the supervisor calls."""
        self.incarnation += 1
        self.state = advance(self.state, ReplicaState.STARTING)
        self.progress = "starting"
        self._on_change()
        return Incarnation(self)

    async def stop(self) -> None:
        """End this life for good: by message, SIGTERM and SIGKILL, with ``stop_grace_s`` for each to take effect. If
        cancelled, the worker is killed at once. The actor's owner stops the actor too, or another life begins."""
        child = self._child
        if child is None or self._channel is None:
            return
        loading = self.state is ReplicaState.STARTING
        if self.state is not ReplicaState.DRAINING:
            self.state = advance(self.state, ReplicaState.DRAINING)
            self._channel.send(frame(Stop()))
        # While it loads a worker hears nothing, and has nothing to lose.
        grace_s = 0.0 if loading else self.plan.limits.stop_grace_s
        with contextlib.suppress(trio.TooSlowError):  # logged by the launcher, and left to the warden
            await child.stop(message_s=grace_s, term_s=grace_s)

    def kill(self) -> None:
        """End this life now, as a crash: another one begins."""
        if self._child is not None:
            self._child.kill()

    def _open(self, channel: Channel, child: ChildProcess) -> None:
        self._channel = channel
        self._child = child
        self.pid = child.pid
        channel.send(frame(self.plan.hello(self.stage.name, self.index, self.incarnation, log_level=self._log_level)))

    def _ended(self, error: ErrorInfo | None) -> None:
        """This life is over: tell everybody who waits for it. Idempotent."""
        if self.state is ReplicaState.DEAD:
            return
        self.state = advance(self.state, ReplicaState.DEAD)
        self._child = None
        self.pid = None
        self.last_error = error or self.last_error
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        self.links.clear()
        requests, self.requests = self.requests, {}
        died = stage_died(self.stage.name).info
        for participant in requests.values():
            participant.on_failed(self, died)
            participant.on_released(self)
        queries, self._queries = self._queries, {}
        for pending in queries.values():
            pending.event.set()
        self._on_change()

    def _handle(self, message: Up) -> None:
        match message:
            case Welcome():
                if message.version != PROTOCOL_VERSION:
                    raise ProtocolError(f"the worker speaks protocol {message.version}")
            case Progress():
                self.progress = message.text
                self._on_change()
            case Ready() if self.state is ReplicaState.STARTING:
                self.info = message.info
                self.address = message.address
                self.state = advance(self.state, ReplicaState.READY)
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
            case Ready() if self.state is ReplicaState.DRAINING:
                pass  # too late: it has been asked to stop
            case _:
                raise ProtocolError(f"unexpected {type(message).__name__}")

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


class Incarnation(Actor[Never]):
    """One life of a replica: from the spawn of a worker to its end.

    Setup returns when the worker is ready, within the stage's start timeout. When the worker ends, by whatever cause,
    the life ends with :class:`WorkerEnded`, and the pool's supervisor starts the next one after a pause.
    """

    def __init__(self, replica: StageReplica) -> None:
        self._replica = replica
        self._child: ChildProcess
        self._settled = trio.Event()
        """Set when the worker is ready, or will never be."""
        self._last_word: ErrorInfo | None = None

    async def setup(self) -> None:
        replica = self._replica
        stage = replica.stage
        environment = {**os.environ, **stage.environment_of(replica.index)}
        try:
            self._child = replica._launcher.spawn(
                python_module("omni_actors.worker"), name=replica.name, env=environment
            )
        except OSError as error:
            replica._ended(ErrorInfo(message=f"the worker could not be started: {error}", stage=stage.name))
            raise
        try:
            channel = Channel(self._child.sock)
            self.start_soon(channel.run_writer)
            self.start_soon(self._read, channel)
            replica._open(channel, self._child)
            with trio.move_on_after(stage.start_timeout_s):
                await self._settled.wait()
            if not self._settled.is_set():
                self._last_word = ErrorInfo(message=f"not ready after {stage.start_timeout_s:g} s", stage=stage.name)
                raise WorkerEnded(self._last_word, await self._end())
        except BaseException:
            with trio.CancelScope(shield=True):
                await self._end()
            raise

    async def teardown(self) -> None:
        await self._replica.stop()
        await self._end()

    async def _read(self, channel: Channel) -> None:
        """Read the channel until its end, and say how the worker ended."""
        replica = self._replica
        reader = up_reader()
        try:
            while self._last_word is None and (data := await channel.receive()):
                for message in reader.feed(data):
                    if type(message) is Step:
                        replica._step(message)
                    elif type(message) is Fatal:
                        self._last_word = message.error
                    elif type(message) is Unlinked:
                        self.start_soon(replica._on_unlinked, replica, message)
                    else:
                        replica._handle(message)
                if replica.state is ReplicaState.READY:
                    self._settled.set()
        except ProtocolError as broken:
            self._last_word = ErrorInfo(message=f"protocol error: {broken}", stage=replica.stage.name)
        if replica.state is ReplicaState.DRAINING:
            self._settled.set()
            return  # it was asked to
        error = self._last_word or ErrorInfo(message="the worker ended without a word", stage=replica.stage.name)
        # First those who wait are told: the end of the whole group may take a moment.
        replica._ended(error)
        raise WorkerEnded(error, await self._end())

    async def _end(self) -> Death | None:
        """Make sure that the worker is gone; idempotent. ``None`` if not even SIGKILL helped."""
        replica = self._replica
        death = None
        try:
            death = await self._child.stop(message_s=0.0, term_s=0.0)
        except trio.TooSlowError:
            pass  # logged by the launcher, and left to the warden
        finally:
            replica._ended(None if replica.state is ReplicaState.DRAINING else self._last_word)
        if death is not None and replica.last_error is not None:
            message = f"{replica.last_error.message} ({death})"
            replica.last_error = msgspec.structs.replace(replica.last_error, message=message)
        return death


class WorkerEnded(ProcessDied):
    """A worker's life ended, in its own words where it had any."""

    def __init__(self, error: ErrorInfo, death: Death | None) -> None:
        Exception.__init__(self, error.message if death is None else f"{error.message} ({death})")
