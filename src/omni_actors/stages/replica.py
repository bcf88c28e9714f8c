"""A replica of a stage, as the rest of the serving process knows it over all incarnations of its worker.

:class:`StageReplica` is no actor: its methods run in the caller's task. Each incarnation of the worker is an actor
under the pool's supervisor (:class:`~omni_actors.stages.incarnation.Incarnation`). The incarnation's reader advances
the requests' records synchronously: no task, channel or nursery per stage of a request. A worker's death is a value:
every request in the worker is told, and the next incarnation begins.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Awaitable, Callable
from typing import Any, Never, Protocol

import msgspec
import trio

from omni_actors.actors.process import ChildProcess, Death, Launcher
from omni_actors.actors.ref import ActorRef
from omni_actors.pipelines.plan import Plan, StagePlan
from omni_actors.protocol.codec import ProtocolError, frame
from omni_actors.protocol.errors import (
    ErrorInfo,
    stage_died,
    stage_replaced,
    stage_unavailable,
)
from omni_actors.protocol.frames import (
    PROTOCOL_VERSION,
    Abort,
    Ledger,
    Progress,
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
from omni_actors.protocol.status import ExitCause
from omni_actors.stages.channel import Channel
from omni_actors.stages.history import ReplicaHistory, restart_policy
from omni_actors.stages.liveness import Watch
from omni_actors.stages.questions import Questions

log = logging.getLogger("omni_actors.stages")


class RequestListener(Protocol):
    """A request as the replicas that serve it see it. Everything here is synchronous and never raises. What belongs to
    an attempt (``key``) that is over changes nothing but what is left to release."""

    def on_text(self, replica: StageReplica, delta: TextDelta) -> None: ...
    def on_media(self, replica: StageReplica, chunk: MediaChunk) -> None: ...
    def on_ledger(self, replica: StageReplica, entry: Ledger) -> None: ...
    def on_done(self, replica: StageReplica, done: StageDone) -> None: ...
    def on_failed(self, replica: StageReplica, key: int, error: ErrorInfo) -> None: ...
    def on_released(self, replica: StageReplica, key: int) -> None: ...
    def on_fed(self, key: int, count: int) -> None: ...


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
        self.requests: dict[int, RequestListener] = {}
        self.requests_at_exit = 0
        """Requests that were in the last worker when that worker ended."""
        self.quarantined = False
        """Whether the replica takes only suspects of a worker's death (:mod:`omni_actors.orchestrator.bisection`)."""
        self.pid: int | None = None
        self.history = ReplicaHistory()
        self.drained = False
        """Whether an operator wants it to take no new requests."""
        self.restarting = False
        """Whether its worker is being ended for another one to begin."""
        self.replacement_pending = False
        """Whether its worker was ended for another one, which is not ready yet and has not failed to become so."""
        self.kill_reason: tuple[ExitCause, ErrorInfo] | None = None
        """Why its worker is being killed, if it is."""
        self.watch: Watch | None = None
        self.actor: ActorRef[Never] | None = None
        """The actor of its lives, once there was one."""
        self.changed = trio.lowlevel.ParkingLot()
        """Woken when its state or progress changes, and when a drained replica has become empty."""
        self.launcher = launcher
        self.on_unlinked = on_unlinked
        self._restart_policy = restart_policy(plan.limits)
        self._log_level = log_level
        self._on_ready = on_ready
        self._on_change = on_change
        self._channel: Channel | None = None
        self._child: ChildProcess | None = None
        self._questions = Questions(stage.name)

    @property
    def name(self) -> str:
        """``stage#replica@incarnation``, for logs."""
        return f"{self.stage.name}#{self.index}@{self.incarnation}"

    @property
    def load(self) -> int:
        """Requests that it holds."""
        return len(self.requests)

    @property
    def ranks(self) -> tuple[int, ...]:
        """Processes of this life: its worker's, and those of the other ranks once it has said them (``info``)."""
        said = self.info.get("ranks")
        if isinstance(said, list) and said[:1] == [self.pid] and all(isinstance(pid, int) for pid in said):
            return tuple(said)
        return () if self.pid is None else (self.pid,)

    @property
    def live(self) -> bool:
        return self.state is ReplicaState.READY

    @property
    def accepts_requests(self) -> bool:
        """Whether new requests may be bound to it. None is new to the media process, which holds its media: that drains
        by beginning nothing (``Orchestrator.query_media``)."""
        if self.state is not ReplicaState.READY or self.quarantined:
            return False
        return not self.drained or self.stage.is_media

    @property
    def empty(self) -> bool:
        """Whether nothing of anybody is in it."""
        return not self.requests and not self._questions

    @property
    def questions(self) -> int:
        """Questions that wait for their answers."""
        return len(self._questions)

    def has_work(self) -> bool:
        """Whether its worker has something to do, and should be seen to do it."""
        return self.state is ReplicaState.READY and not self.empty

    def expected_s(self) -> float:
        """Seconds until it is likely to be ready."""
        return self.history.expected_s(self.pause_s)

    @property
    def pause_s(self) -> float:
        """Seconds until its next life begins; 0 unless it is between two."""
        actor = self.actor
        if actor is None or self.history.started_at is not None or self.restarting:
            return 0.0
        if actor.restart_at is None:  # in the moment of a death
            return self._restart_policy.delay(actor.failures + 1)
        return max(0.0, actor.restart_at - trio.current_time())

    # ---- requests

    def submit(self, key: int, listener: RequestListener, data: bytes, *, later: bool) -> None:
        """Send an encoded Submit and have the listener told what becomes of it. The replica must be live."""
        assert self._channel is not None
        if not self.requests:
            self._work_begins()
        self.history.served += 1
        self.requests[key] = listener
        self._channel.send(data, later=later)

    def send(self, data: bytes) -> None:
        """Send an encoded frame, if the worker is there."""
        if self._channel is not None:
            self._channel.send(data)

    def notify(self, what: str, args: dict[str, Any]) -> None:
        """Ask the worker something whose answer nobody waits for, if it is there."""
        self.send(self._questions.notify(what, args))

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
            raise stage_unavailable(self.stage.name, max(1.0, self.expected_s()))
        self._work_begins()
        patience_s = self.plan.limits.query_timeout_s if timeout_s is None else timeout_s
        try:
            return await self._questions.ask(self._channel.send, what, args or {}, patience_s)
        finally:
            self._look_empty()

    # ---- life

    def start(self) -> None:
        """The next life begins."""
        self.incarnation += 1
        self.state = advance(self.state, ReplicaState.STARTING)
        self.progress = "starting"
        self.restarting, self.kill_reason, self.watch = False, None, None
        self.history.start()
        self._changed()

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

    def drain(self, drained: bool) -> None:
        """Whether it is to take no new requests."""
        self.drained = drained
        self._changed()

    async def restart(self) -> None:
        """End this life for another one to begin at once, which is no failure: as :meth:`stop` does. Requests in it are
        told that their worker was replaced. Nothing happens between two lives. The next one is not drained."""
        if self._child is not None and self.state is not ReplicaState.DRAINING:
            self.restarting = self.replacement_pending = True
            self.drained = False
            await self.stop()

    def kill(self, cause: ExitCause | None = None, why: str = "") -> None:
        """End this life now, as a crash: another one begins. ``cause`` and ``why`` are kept as the reason, if its
        worker itself has none."""
        if self._child is not None:
            if cause is not None and self.kill_reason is None:
                self.kill_reason = cause, ErrorInfo(message=why, stage=self.stage.name)
            self._child.kill()

    def connected(self, channel: Channel, child: ChildProcess) -> None:
        self._channel = channel
        self._child = child
        self.pid = child.pid
        channel.send(frame(self.plan.hello(self.stage.name, self.index, self.incarnation, log_level=self._log_level)))

    def exited(self, cause: ExitCause | None, error: ErrorInfo | None) -> None:
        """This life is over: tell everybody who waits for it. Idempotent. No ``cause``: with the whole deployment."""
        if self.state is ReplicaState.DEAD:
            return
        # Where it is ended by command, or for a request that is over, those in it have done nothing wrong.
        blameless = self.state is ReplicaState.DRAINING or cause in ("killed", "unreleased")
        gone = stage_replaced if blameless else stage_died
        if self.state is ReplicaState.DRAINING and not self.restarting:
            cause = error = None
        self.history.exited(cause, error)
        self.replacement_pending = self.replacement_pending and self.restarting
        self.state = advance(self.state, ReplicaState.DEAD)
        self._child = self.watch = self.pid = None
        self.progress = "ended"
        self.last_error = error or self.last_error
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        self.links.clear()
        requests, self.requests = self.requests, {}
        info = gone(self.stage.name, max(1.0, self.expected_s())).info
        self.requests_at_exit = len(requests)
        for key, listener in requests.items():
            listener.on_failed(self, key, info)
        for key, listener in requests.items():  # once it is known what becomes of each
            listener.on_released(self, key)
        self._questions.died()
        self._changed()

    def record_exit(self, death: Death) -> None:
        """How the process of the life that has ended came to its end, for those who look."""
        if self.last_error is not None and str(death) not in self.last_error.message:
            message = f"{self.last_error.message} ({death})"
            self.last_error = msgspec.structs.replace(self.last_error, message=message)
        self.history.add_to_exit(str(death))

    def handle(self, message: Up) -> None:
        match message:
            case Welcome():
                if message.version != PROTOCOL_VERSION:
                    raise ProtocolError(f"the worker speaks protocol {message.version}")
            case Progress():
                self.progress = message.text
                self._changed()
            case Ready() if self.state is ReplicaState.STARTING:
                self.info = message.info
                self.address = message.address
                self.state = advance(self.state, ReplicaState.READY)
                self.progress = "ready"
                self.was_ready = True
                self.last_error = None
                self.history.become_ready()
                self.replacement_pending = False
                log.info("%s is ready (pid %s)", self.name, self.pid)
                self._on_ready(self)
                self._changed()
            case Reply():
                self._questions.answered(message)
            case Ready() if self.state is ReplicaState.DRAINING:
                pass  # too late: it has been asked to stop
            case _:
                raise ProtocolError(f"unexpected {type(message).__name__}")

    def on_step(self, step: Step) -> None:
        requests = self.requests
        for delta in step.texts:
            if (it := requests.get(delta.key)) is not None:
                it.on_text(self, delta)
        for entry in step.ledger:
            if (it := requests.get(entry.key)) is not None:
                it.on_ledger(self, entry)
        for chunk in step.media:
            if (it := requests.get(chunk.key)) is not None:
                it.on_media(self, chunk)
        for done in step.done:
            if (it := requests.get(done.key)) is not None:
                it.on_done(self, done)
        for failed in step.failed:
            if (it := requests.get(failed.key)) is not None:
                it.on_failed(self, failed.key, failed.error)
        for key, count in step.fed:
            if (it := requests.get(key)) is not None:
                it.on_fed(key, count)
        for key in step.released:
            if (it := requests.pop(key, None)) is not None:
                it.on_released(self, key)
        if step.released:
            self._look_empty()

    def _work_begins(self) -> None:
        if self.watch is not None and self.empty:
            self.watch.work_begins()

    def _look_empty(self) -> None:
        if self.drained and self.empty:
            self.changed.unpark_all()

    def _changed(self) -> None:
        self.changed.unpark_all()
        self._on_change()
