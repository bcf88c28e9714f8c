"""The operator's commands to replicas of a running deployment: show, drain, sleep, replace and kill.

A command runs in the task of its caller; nothing runs in the background. When the caller is cancelled (its client
leaves), a replica that is waiting to become empty serves as before, and a replica whose worker has ended already gets
its next incarnation as usual.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import trio

from omni_actors.pipelines.plan import DeploymentLimits
from omni_actors.protocol.errors import OmniError
from omni_actors.protocol.states import ReplicaState
from omni_actors.protocol.status import ExitCause
from omni_actors.stages import refusals
from omni_actors.stages.pool import StagePool
from omni_actors.stages.replica import StageReplica

log = logging.getLogger("omni_actors.stages")


@dataclass(frozen=True, slots=True)
class LastEnd:
    """The end of the latest incarnation that has ended."""

    cause: ExitCause
    message: str
    ago_s: float
    ready_s: float | None
    """Seconds for which the incarnation had been ready; ``None`` if it never was."""
    served: int


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """A snapshot of a replica.

    ``state`` is ``starting``, ``ready``, ``draining`` (no new requests, some running), ``drained`` (no requests left),
    ``asleep``, ``ending``, or ``dead`` (until the next incarnation). ``questions`` counts pending queries beside
    requests.
    """

    stage: str
    index: int
    state: str
    incarnation: int
    pid: int | None
    ranks: tuple[int, ...]
    """The processes of the ranks, ``pid`` first. The other ranks' processes are known once the replica is ready."""
    device: str
    devices: tuple[str, ...]
    """The devices of the ranks, ``device`` first."""
    requests: int
    questions: int
    served: int
    uptime_s: float | None
    """Seconds since the replica became ready; ``None`` while it is not ready."""
    progress: str
    restarts: int
    failures: int
    """The latest failures in a row."""
    next_s: float | None
    """Seconds until the replica is likely to be ready; ``None`` when it is ready."""
    last_end: LastEnd | None
    links: Mapping[str, int]
    """Links to replicas of each neighbour stage."""


@dataclass(frozen=True, slots=True)
class _Sleep:
    """The level of a replica's sleep, and the incarnation that was told to sleep."""

    level: int
    incarnation: int


class Control:
    """The operator's commands of one deployment.

    Each command raises :class:`OmniError` (:mod:`omni_actors.stages.refusals`): 404 for an unknown stage or replica,
    409 for a replica that is busy with another command. ``returned`` is called with a replica that takes requests
    again.
    """

    def __init__(
        self, pools: Mapping[str, StagePool], limits: DeploymentLimits, returned: Callable[[StageReplica], None]
    ) -> None:
        self._pools = pools
        self._limits = limits
        self._returned = returned
        self._busy: dict[StageReplica, str] = {}
        """The running command of each busy replica."""
        self._sleeping: dict[StageReplica, _Sleep] = {}
        """The replicas that sleep until they are woken or replaced."""

    def status(self) -> list[ReplicaStatus]:
        """Return the status of every replica, in the order of the plan."""
        return [self._status(replica) for pool in self._pools.values() for replica in pool.replicas]

    def drain(self, stage: str, index: int) -> ReplicaStatus:
        """Let a replica finish its requests and take no new ones until :meth:`undrain`, also after a restart."""
        replica = self._free(stage, index, "drain")
        replica.drain(True)
        log.info("%s takes no new requests", replica.name)
        return self._status(replica)

    def undrain(self, stage: str, index: int) -> ReplicaStatus:
        """Let a drained replica take requests again."""
        replica = self._free(stage, index, "undrain")
        if (sleep := self._sleep_of(replica)) is not None:
            raise refusals.asleep(replica, "undrain", sleep.level)
        return self._take_requests(replica)

    async def sleep(self, stage: str, index: int, level: int = 0) -> ReplicaStatus:
        """Pause a replica with its requests, and give it no new requests, until :meth:`wake`.

        Args:
            stage: The stage's name.
            index: The replica's number.
            level: 1 also frees the memory of the replica's device.

        Returns:
            The replica's status afterwards. A replica that sleeps at this level already is no error.

        Raises:
            OmniError: The replica is unchanged: its engine cannot sleep, or not at that level (400); the replica is not
                ready, sleeps at another level, or is busy with another command (409); the worker did not obey (503).

        When the call is cancelled, the replica is awake and unchanged.
        """
        replica = self._free(stage, index, "sleep")
        if (sleep := self._sleep_of(replica)) is not None:
            if sleep.level == level:
                return self._status(replica)
            raise refusals.asleep(replica, "sleep", sleep.level)
        before = replica.drained
        with self._busy_with(replica, "sleep"):
            replica.drain(True)
            try:
                await self._ask(replica, "sleep", {"level": level})
            except BaseException:
                replica.notify("wake", {})  # the worker may have fallen asleep nevertheless
                replica.drain(before)
                raise
        self._sleeping[replica] = _Sleep(level, replica.incarnation)
        if level:
            self._pools[stage].forget(replica)
        log.info("%s sleeps", replica.name)
        return self._status(replica)

    async def wake(self, stage: str, index: int) -> ReplicaStatus:
        """Let a sleeping replica continue and take requests again, also after its worker has ended while asleep.

        Raises :class:`OmniError`: 400 and 409 like :meth:`sleep`, 409 too for a replica that is not asleep, 503 when
        the worker did not obey.
        """
        replica = self._find(stage, index)
        if (
            replica in self._sleeping and self._sleep_of(replica) is None
        ):  # the next incarnation is awake, and still drained
            return self._take_requests(self._free(stage, index, "undrain"))
        self._free(stage, index, "wake")
        if replica not in self._sleeping:
            raise refusals.awake(replica)
        with self._busy_with(replica, "wake"):
            await self._ask(replica, "wake", {})
        return self._take_requests(replica)

    def kill(self, stage: str, index: int) -> ReplicaStatus:
        """End a replica's worker at once, like a crash.

        The requests resume elsewhere or later, as after any death, but no request is suspected of the death.
        """
        replica = self._find(stage, index)
        if replica.pid is None:
            raise refusals.no_worker(replica)
        log.warning("%s is killed by command", replica.name)
        replica.kill("killed", "killed by command")
        return self._status(replica)

    async def replace(self, stage: str, index: int, grace_s: float | None = None) -> ReplicaStatus:
        """Give a replica another worker, and return when the new worker is ready.

        The old worker takes no new requests. Its requests have ``grace_s`` seconds to finish (default: the plan's
        ``drain_s``); the rest then continues in another attempt. If the stage has no other replica, new requests wait.
        For a replica that is not ready, the call waits for the next incarnation. Raises 503 when the new worker does
        not become ready.
        """
        replica = self._free(stage, index, "replace")
        pool = self._pools[stage]
        pool.changing.add(replica)
        try:
            with self._busy_with(replica, "replace"):
                await self._replace(replica, self._limits.drain_s if grace_s is None else grace_s)
        finally:
            pool.changing.discard(replica)
            if self._sleep_of(replica) is None:
                self._sleeping.pop(replica, None)
                replica.drain(False)
                if replica.live:
                    self._returned(replica)
        return self._status(replica)

    async def restart(self, stage: str | None = None, grace_s: float | None = None) -> list[ReplicaStatus]:
        """Replace all replicas of a stage (``None``: of every stage), one at a time.

        The first failure ends the restart: later replicas keep their workers, and the error names the replicas with new
        workers.
        """
        pools = list(self._pools.values()) if stage is None else [self._pool(stage)]
        done: list[ReplicaStatus] = []
        for replica in [replica for pool in pools for replica in pool.replicas]:
            try:
                done.append(await self.replace(replica.stage.name, replica.index, grace_s))
            except OmniError as error:
                names = ", ".join(f"{it.stage} {it.index}" for it in done) or "none"
                message = f"{error.info.message} The restart ends here; with new workers are: {names}."
                raise OmniError(msgspec.structs.replace(error.info, message=message)) from None
        return done

    async def _replace(self, replica: StageReplica, grace_s: float) -> None:
        failures = _failed_starts(replica)
        if replica.live:
            replica.drain(True)
            with trio.move_on_after(grace_s):
                if replica.stage.is_media:
                    await _settled(replica)
                await _until(replica, lambda: replica.empty or not replica.live)
            log.info("%s is replaced by command, with %d requests left in it", replica.name, len(replica.requests))
            before = replica.incarnation
            await replica.restart()
            await _until(replica, lambda: replica.incarnation > before)
        await _until(replica, lambda: replica.live or _failed_starts(replica) > failures)
        if not replica.live:
            raise refusals.did_not_start(replica)

    def _take_requests(self, replica: StageReplica) -> ReplicaStatus:
        self._sleeping.pop(replica, None)
        replica.drain(False)
        log.info("%s takes requests again", replica.name)
        if replica.live:
            self._returned(replica)
        return self._status(replica)

    async def _ask(self, replica: StageReplica, action: str, args: dict[str, Any]) -> None:
        """Send a command to the worker, and wait until the worker reports that it is done."""
        try:
            await replica.query(action, args)
        except OmniError as error:
            match error.info.code:
                case "deadline_exceeded":
                    why = f"its worker did not answer within {self._limits.query_timeout_s:g} s"
                case "stage_died" | "stage_unavailable" | "stage_replaced":
                    why = "its worker ended meanwhile; the next one is awake, and is started by itself"
                case _:
                    raise  # the engine's own words
            raise refusals.not_done(replica, action, why) from None

    def _status(self, replica: StageReplica) -> ReplicaStatus:
        return _status(replica, self._sleep_of(replica) is not None)

    def _sleep_of(self, replica: StageReplica) -> _Sleep | None:
        """Return the sleep of the replica's worker, if it is asleep. A later incarnation of a sleeping replica is
        awake."""
        sleep = self._sleeping.get(replica)
        return sleep if sleep is not None and sleep.incarnation == replica.incarnation and replica.live else None

    def _pool(self, stage: str) -> StagePool:
        pool = self._pools.get(stage)
        if pool is None:
            raise refusals.unknown_stage(stage, self._pools)
        return pool

    def _find(self, stage: str, index: int) -> StageReplica:
        replicas = self._pool(stage).replicas
        if not 0 <= index < len(replicas):
            raise refusals.unknown_replica(stage, index, len(replicas))
        return replicas[index]

    def _free(self, stage: str, index: int, action: str) -> StageReplica:
        """Return the replica, if it is free for a command."""
        replica = self._find(stage, index)
        if (other := self._busy.get(replica)) is not None:
            raise refusals.busy(replica, action, other)
        if action in ("sleep", "wake"):
            if replica.live and action not in _commands(replica):
                raise refusals.unsupported(replica, action)
            if not replica.live:
                raise refusals.not_ready(replica, action, _state(replica, False))
        return replica

    @contextlib.contextmanager
    def _busy_with(self, replica: StageReplica, action: str) -> Iterator[None]:
        """Mark the replica as busy during the block, so that other commands are refused."""
        self._busy[replica] = action
        try:
            yield
        finally:
            del self._busy[replica]


async def _until(replica: StageReplica, condition: Callable[[], bool]) -> None:
    while not condition():
        await replica.changed.park()


async def _settled(replica: StageReplica) -> None:
    """Wait until the media process holds no client's data, or is gone."""
    with contextlib.suppress(OmniError):
        await replica.query("settle", timeout_s=math.inf)


def _commands(replica: StageReplica) -> frozenset[str]:
    """Return the commands that the replica's engine knows, as its worker has reported."""
    said = replica.info.get("commands")
    return frozenset(said) if isinstance(said, list) else frozenset()


def _failed_starts(replica: StageReplica) -> int:
    return replica.history.exits["start"]


def _status(replica: StageReplica, asleep: bool) -> ReplicaStatus:
    history, now = replica.history, trio.current_time()
    links: dict[str, int] = {}
    for peer, _index in replica.links:
        links[peer] = links.get(peer, 0) + 1
    end, last = None, history.last_exit
    if last is not None:
        end = LastEnd(last.cause, last.error.message, now - last.at, last.ready_s, last.served)
    return ReplicaStatus(
        stage=replica.stage.name,
        index=replica.index,
        state=_state(replica, asleep),
        incarnation=replica.incarnation,
        pid=replica.pid,
        ranks=replica.ranks,
        device=replica.stage.device_of(replica.index),
        devices=tuple(replica.stage.device_of(replica.index, rank) for rank in range(replica.stage.strategy.ranks)),
        requests=len(replica.requests),
        questions=replica.questions,
        served=history.served,
        uptime_s=None if history.ready_at is None else now - history.ready_at,
        progress=replica.progress,
        restarts=max(0, replica.incarnation - 1),
        failures=0 if replica.actor is None else replica.actor.failures,
        next_s=None if replica.live else replica.expected_s(),
        last_end=end,
        links=links,
    )


def _state(replica: StageReplica, asleep: bool) -> str:
    if replica.state is ReplicaState.DRAINING:
        return "ending"
    if asleep:
        return "asleep"
    if replica.live and replica.drained:
        return "drained" if replica.empty else "draining"
    return str(replica.state.value)
