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
from typing import Any, Never

import msgspec
import trio

from omni_actors.actors.child_process import ChildProcess, Death
from omni_actors.actors.process import Launcher
from omni_actors.actors.ref import ActorRef
from omni_actors.pipelines.plan import Plan, StagePlan
from omni_actors.protocol.codec import ProtocolError, frame
from omni_actors.protocol.errors import ErrorInfo, stage_died, stage_replaced, stage_unavailable
from omni_actors.protocol.frames import (
    PROTOCOL_VERSION,
    Abort,
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
from omni_actors.protocol.states import ReplicaState, advance
from omni_actors.protocol.status import ExitCause
from omni_actors.stages.channel import Channel
from omni_actors.stages.history import ReplicaHistory, restart_policy
from omni_actors.stages.listener import RequestListener
from omni_actors.stages.liveness import Watch
from omni_actors.stages.questions import Questions

log = logging.getLogger("omni_actors.stages")


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
        """The address of the worker for links by TCP."""
        self.requests: dict[int, RequestListener[StageReplica]] = {}
        self.requests_at_exit = 0
        """Requests that were in the last worker when that worker ended."""
        self.quarantined = False
        """Whether the replica takes only suspects of a worker's death (:mod:`omni_actors.orchestrator.bisection`)."""
        self.pid: int | None = None
        self.history = ReplicaHistory()
        self.drained = False
        """Whether an operator has drained the replica, so that it takes no new requests."""
        self.restarting = False
        """Whether the worker is being replaced."""
        self.replacement_pending = False
        """Whether a replaced worker has ended, and the new worker is neither ready nor has failed to start."""
        self.kill_reason: tuple[ExitCause, ErrorInfo] | None = None
        """The reason for which the worker is being killed, or ``None``."""
        self.watch: Watch | None = None
        self.actor: ActorRef[Never] | None = None
        """The actor of the incarnations, once the first has begun."""
        self.changed = trio.lowlevel.ParkingLot()
        """Woken when the replica's state or progress changes, and when a drained replica has become empty."""
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
        """The name ``stage#replica@incarnation``, for logs."""
        return f"{self.stage.name}#{self.index}@{self.incarnation}"

    @property
    def load(self) -> int:
        """The number of requests in the replica."""
        return len(self.requests)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The processes of the incarnation: the worker's, and the other ranks' once the worker has reported them
        (``info``)."""
        said = self.info.get("ranks")
        if isinstance(said, list) and said[:1] == [self.pid] and all(isinstance(pid, int) for pid in said):
            return tuple(said)
        return () if self.pid is None else (self.pid,)

    @property
    def live(self) -> bool:
        return self.state is ReplicaState.READY

    @property
    def accepts_requests(self) -> bool:
        """Whether new requests may be bound to the replica.

        A request is never new to the media process, which holds its media. The media process drains by beginning no
        operations (``Orchestrator.query_media``).
        """
        if self.state is not ReplicaState.READY or self.quarantined:
            return False
        return not self.drained or self.stage.is_media

    @property
    def empty(self) -> bool:
        """Whether the replica holds no request and no client's data."""
        return not self.requests and not self._questions

    @property
    def questions(self) -> int:
        """The number of pending queries."""
        return len(self._questions)

    def has_work(self) -> bool:
        """Whether the worker has work, and must show progress."""
        return self.state is ReplicaState.READY and not self.empty

    def expected_s(self) -> float:
        """Seconds until the replica is likely to be ready."""
        return self.history.expected_s(self.pause_s)

    @property
    def pause_s(self) -> float:
        """Seconds until the next incarnation begins; 0 outside of the backoff."""
        actor = self.actor
        if actor is None or self.history.started_at is not None or self.restarting:
            return 0.0
        if actor.restart_at is None:  # in the moment of a death
            return self._restart_policy.delay(actor.failures + 1)
        return max(0.0, actor.restart_at - trio.current_time())

    # ---- requests

    def submit(self, key: int, listener: RequestListener[StageReplica], data: bytes, *, later: bool) -> None:
        """Send an encoded Submit, and let the listener be told of the request's events. The replica must be live."""
        assert self._channel is not None
        if not self.requests:
            self._work_begins()
        self.history.served += 1
        self.requests[key] = listener
        self._channel.send(data, later=later)

    def send(self, data: bytes) -> None:
        """Send an encoded frame, if there is a worker."""
        if self._channel is not None:
            self._channel.send(data)

    def notify(self, what: str, args: dict[str, Any]) -> None:
        """Send a query without an answer (fire and forget), if there is a worker."""
        self.send(self._questions.notify(what, args))

    def abort(self, key: int) -> None:
        """Let the worker forget a request. ``on_released`` follows, also when the worker dies."""
        if key in self.requests and self._channel is not None:
            self._channel.send(frame(Abort(key)))

    def wire(self, link: int, other: StageReplica, end: int | TcpEnd) -> None:
        """Hand the worker one end of a link: a descriptor, which is closed here, or the settings of a TCP link."""
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
        """Forget a broken link; return whether the link is the one in use."""
        if self.links.get((other.stage.name, other.index)) != link:
            return False
        del self.links[other.stage.name, other.index]
        return True

    async def query(self, what: str, args: dict[str, Any] | None = None, *, timeout_s: float | None = None) -> Any:
        """Send a query to the worker, and return its answer.

        Raises the worker's typed error, ``stage_unavailable`` without a live worker, ``stage_died`` when the worker
        dies meanwhile, ``deadline_exceeded`` after ``timeout_s`` seconds (default: the plan's ``query_timeout_s``).
        """
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
        """Begin the next incarnation."""
        self.incarnation += 1
        self.state = advance(self.state, ReplicaState.STARTING)
        self.progress = "starting"
        self.restarting, self.kill_reason, self.watch = False, None, None
        self.history.start()
        self._changed()

    async def stop(self) -> None:
        """End the worker by message, SIGTERM and SIGKILL, with ``stop_grace_s`` seconds for each to take effect; if
        cancelled, kill it at once. The pool must stop the actor too, or another incarnation begins."""
        child = self._child
        if child is None or self._channel is None:
            return
        loading = self.state is ReplicaState.STARTING
        if self.state is not ReplicaState.DRAINING:
            self.state = advance(self.state, ReplicaState.DRAINING)
            self._channel.send(frame(Stop()))
        # A loading worker reads no messages, and has nothing to lose.
        grace_s = 0.0 if loading else self.plan.limits.stop_grace_s
        with contextlib.suppress(trio.TooSlowError):  # logged by the launcher, and left to the warden
            await child.stop(message_s=grace_s, term_s=grace_s)

    def drain(self, drained: bool) -> None:
        """Set whether the replica takes no new requests."""
        self.drained = drained
        self._changed()

    async def restart(self) -> None:
        """End the worker like :meth:`stop`; the next incarnation begins at once, undrained, and no failure is counted.
        Its requests are told that the worker was replaced. Between two incarnations the call does nothing."""
        if self._child is not None and self.state is not ReplicaState.DRAINING:
            self.restarting = self.replacement_pending = True
            self.drained = False
            await self.stop()

    def kill(self, cause: ExitCause | None = None, why: str = "") -> None:
        """Kill the worker, like a crash: the next incarnation begins after the backoff. ``cause`` and ``why`` are
        recorded as the reason, unless the worker itself reports one."""
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
        """Note the end of the incarnation, and tell all waiters. Idempotent. Without ``cause`` the whole deployment
        ends."""
        if self.state is ReplicaState.DEAD:
            return
        # A worker ended by command, or for a request that is over, casts no suspicion on its requests.
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
        for key, listener in requests.items():  # after the fate of each request is known
            listener.on_released(self, key)
        self._questions.died()
        self._changed()

    def record_exit(self, death: Death) -> None:
        """Record how the process of the last incarnation ended, for the replica's status."""
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
        for progress in step.progress:
            if (it := requests.get(progress.key)) is not None:
                it.on_progress(self, progress)
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
