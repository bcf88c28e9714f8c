"""What an operator does to replicas while the deployment serves: look at them, drain, replace and kill them.

Nothing runs in the background: a command that takes time runs in the task of whoever gave it. When that is cancelled
(its client leaves), a replica that waits to become empty goes on as before, and one that is ended already is followed
by its next life all the same.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import trio

from omni_actors.pipelines.plan import MEDIA_STAGE, DeploymentLimits
from omni_actors.protocol.errors import ErrorInfo, OmniError, not_found
from omni_actors.protocol.states import ReplicaState
from omni_actors.stages.lives import Cause
from omni_actors.stages.pool import StagePool
from omni_actors.stages.replica import StageReplica

log = logging.getLogger("omni_actors.stages")


@dataclass(frozen=True, slots=True)
class LastEnd:
    """How the last life that ended came to its end."""

    cause: Cause
    message: str
    ago_s: float
    ready_s: float | None
    """For how long it had been ready; ``None`` if it never was."""
    served: int


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """A replica as it is at this moment.

    ``state`` is ``starting``, ``ready``, ``draining`` (it takes no new requests and has some), ``drained`` (it has none
    any more), ``ending``, or ``dead`` (until its next life). ``questions`` are those beside requests.
    """

    stage: str
    index: int
    state: str
    incarnation: int
    pid: int | None
    ranks: tuple[int, ...]
    """Processes of its ranks, ``pid`` first; those of the others are known once it is ready."""
    device: str
    devices: tuple[str, ...]
    """Of each rank, ``device`` first."""
    requests: int
    questions: int
    served: int
    uptime_s: float | None
    """Since it became ready; ``None`` while it is not."""
    progress: str
    restarts: int
    failures: int
    """The latest in a row."""
    next_s: float | None
    """Seconds until it is likely to be ready; ``None`` when it is."""
    last_end: LastEnd | None
    links: Mapping[str, int]
    """Links to replicas of each neighbour stage."""


class Control:
    """Commands of one deployment. Each raises :class:`OmniError`: 404 for a stage or a replica that there is not, 409
    for a replica that another command is at. ``returned`` is told of a replica that takes requests again."""

    def __init__(
        self, pools: Mapping[str, StagePool], limits: DeploymentLimits, returned: Callable[[StageReplica], None]
    ) -> None:
        self._pools = pools
        self._limits = limits
        self._returned = returned

    def status(self) -> list[ReplicaStatus]:
        """Every replica, in the order of the plan."""
        return [_status(replica) for pool in self._pools.values() for replica in pool.replicas]

    def drain(self, stage: str, index: int) -> ReplicaStatus:
        """Let a replica take no new requests; those in it finish. Until :meth:`undrain`, also over its deaths."""
        replica = self._free(stage, index)
        replica.drain(True)
        log.info("%s takes no new requests", replica.name)
        return _status(replica)

    def undrain(self, stage: str, index: int) -> ReplicaStatus:
        """Let a drained replica take requests again."""
        replica = self._free(stage, index)
        replica.drain(False)
        log.info("%s takes requests again", replica.name)
        if replica.live:
            self._returned(replica)
        return _status(replica)

    async def sleep(self, stage: str, index: int, level: int = 0) -> ReplicaStatus:
        """Let a replica take no new requests and stand still with those in it, until :meth:`wake`; of ``level`` 1 it
        also gives back its device's memory. Raises 400 for an engine that cannot, or not to that level; the replica is
        then as it was."""
        replica = self._free(stage, index)
        before = replica.drained
        replica.drain(True)
        try:
            await replica.query("sleep", {"level": level})
        except BaseException:
            replica.drain(before)
            raise
        if level:
            self._pools[stage].forget(replica)
        log.info("%s sleeps", replica.name)
        return _status(replica)

    async def wake(self, stage: str, index: int) -> ReplicaStatus:
        """Let a replica that sleeps go on, and take requests again."""
        await self._free(stage, index).query("wake")
        return self.undrain(stage, index)

    def kill(self, stage: str, index: int) -> ReplicaStatus:
        """End a replica's worker at once, as a crash does: its requests go on elsewhere or later, as after any death,
        but none is suspected of it."""
        replica = self._find(stage, index)
        log.warning("%s is killed by command", replica.name)
        replica.kill("killed", "killed by command")
        return _status(replica)

    async def replace(self, stage: str, index: int, grace_s: float | None = None) -> ReplicaStatus:
        """Give a replica another worker, and return when that is ready. It takes no new requests from now on; those in
        it have ``grace_s`` seconds to finish (default: the plan's ``drain_s``); what is left then goes on in another
        attempt. While the stage has no other replica new requests wait. Of a replica that is not ready the next life
        is waited for. Raises 503 when the new worker does not become ready."""
        replica = self._free(stage, index)
        pool = self._pools[stage]
        pool.changing.add(replica)
        try:
            await self._replace(replica, self._limits.drain_s if grace_s is None else grace_s)
        finally:
            pool.changing.discard(replica)
            replica.drain(False)
            if replica.live:
                self._returned(replica)
        return _status(replica)

    async def restart(self, stage: str | None = None, grace_s: float | None = None) -> list[ReplicaStatus]:
        """Replace all replicas of a stage (``None``: of every stage), one at a time. The first that fails ends it;
        those behind it go on with the workers that they have."""
        pools = list(self._pools.values()) if stage is None else [self._pool(stage)]
        return [await self.replace(pool.stage.name, it.index, grace_s) for pool in pools for it in pool.replicas]

    async def _replace(self, replica: StageReplica, grace_s: float) -> None:
        failures = _failed_starts(replica)
        if replica.live:
            replica.drain(True)
            with trio.move_on_after(grace_s):
                if replica.stage.name == MEDIA_STAGE:
                    await _settled(replica)
                await _until(replica, lambda: replica.empty or not replica.live)
            log.info("%s is replaced by command, with %d requests left in it", replica.name, len(replica.requests))
            before = replica.incarnation
            await replica.renew()
            await _until(replica, lambda: replica.incarnation > before)
        await _until(replica, lambda: replica.live or _failed_starts(replica) > failures)
        if not replica.live:
            raise _did_not_start(replica)

    def _pool(self, stage: str) -> StagePool:
        pool = self._pools.get(stage)
        if pool is None:
            raise not_found(f"There is no stage '{stage}'; there are: {', '.join(self._pools)}.", "stage")
        return pool

    def _find(self, stage: str, index: int) -> StageReplica:
        replicas = self._pool(stage).replicas
        if not 0 <= index < len(replicas):
            which = "0 alone" if len(replicas) == 1 else f"0 to {len(replicas) - 1}"
            raise not_found(f"Stage '{stage}' has no replica {index}; it has {which}.", "index")
        return replicas[index]

    def _free(self, stage: str, index: int) -> StageReplica:
        replica = self._find(stage, index)
        if replica in self._pools[stage].changing:
            raise OmniError(
                ErrorInfo(
                    message=f"Replica {index} of stage '{stage}' is being replaced already.",
                    type="conflict_error",
                    code="replica_busy",
                    param="index",
                    status=409,
                    stage=stage,
                )
            )
        return replica


async def _until(replica: StageReplica, condition: Callable[[], bool]) -> None:
    while not condition():
        await replica.changed.park()


async def _settled(replica: StageReplica) -> None:
    """Wait until the media process holds nothing of anybody, or is gone."""
    with contextlib.suppress(OmniError):
        await replica.query("settle", timeout_s=math.inf)


def _failed_starts(replica: StageReplica) -> int:
    return replica.lives.ends["start"]


def _did_not_start(replica: StageReplica) -> OmniError:
    why = "" if replica.lives.last is None else f": {replica.lives.last.error.message}"
    return OmniError(
        ErrorInfo(
            message=f"The new worker of replica {replica.index} of stage '{replica.stage.name}' did not start{why}.",
            type="unavailable_error",
            code="replacement_failed",
            status=503,
            stage=replica.stage.name,
            retry_after=max(1.0, replica.expected_s()),
        )
    )


def _status(replica: StageReplica) -> ReplicaStatus:
    lives, now = replica.lives, trio.current_time()
    links: dict[str, int] = {}
    for peer, _index in replica.links:
        links[peer] = links.get(peer, 0) + 1
    end, last = None, lives.last
    if last is not None:
        end = LastEnd(last.cause, last.error.message, now - last.at, last.ready_s, last.served)
    return ReplicaStatus(
        stage=replica.stage.name,
        index=replica.index,
        state=_state(replica),
        incarnation=replica.incarnation,
        pid=replica.pid,
        ranks=replica.ranks,
        device=replica.stage.device_of(replica.index),
        devices=tuple(replica.stage.device_of(replica.index, rank) for rank in range(replica.stage.strategy.ranks)),
        requests=len(replica.requests),
        questions=replica.questions,
        served=lives.served,
        uptime_s=None if lives.ready is None else now - lives.ready,
        progress=replica.progress,
        restarts=max(0, replica.incarnation - 1),
        failures=0 if replica.actor is None else replica.actor.failures,
        next_s=None if replica.live else replica.expected_s(),
        last_end=end,
        links=links,
    )


def _state(replica: StageReplica) -> str:
    if replica.state is ReplicaState.DRAINING:
        return "ending"
    if replica.live and replica.drained:
        return "drained" if replica.empty else "draining"
    return str(replica.state.value)
