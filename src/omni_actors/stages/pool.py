"""The pool of a stage: all its replicas, and the choice among them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import trio

from omni_actors.actors.restarts import Restarts
from omni_actors.actors.supervisor import Supervisor
from omni_actors.pipelines.plan import StagePlan
from omni_actors.protocol.errors import OmniError, stage_unavailable
from omni_actors.protocol.request import Request
from omni_actors.protocol.status import EXIT_CAUSES, StageHealth
from omni_actors.stages.balancers import balancer_for
from omni_actors.stages.incarnation import start_incarnation
from omni_actors.stages.replica import StageReplica

_MAX_AFFINITIES = 4096


class StagePool:
    """The replicas of a stage. A request is bound to one replica for a whole attempt, so that its chunks stay in
    order."""

    def __init__(self, stage: StagePlan, replicas: tuple[StageReplica, ...]) -> None:
        self.stage = stage
        self.replicas = replicas
        self.changing: set[StageReplica] = set()
        """The replicas that are being replaced by command."""
        self._turn = 0
        self._affinities: dict[str, StageReplica] = {}
        self.balancer = balancer_for(stage) if len(replicas) > 1 else None

    def start(self, root: Supervisor, policy: Restarts) -> None:
        """Start every replica under a supervisor of the pool's own, without waiting until one is ready."""
        supervisor = root.supervisor(self.stage.name, restarts=policy)
        for replica in self.replicas:
            name = f"{self.stage.name}#{replica.index}"
            replica.actor = supervisor.start(partial(start_incarnation, replica), name=name)

    async def stop(self) -> None:
        """End every replica for good, side by side (:meth:`StageReplica.stop <omni_actors.stages.replica.StageReplica.
        stop>`)."""

        async def stop(replica: StageReplica) -> None:
            await replica.stop()
            if replica.actor is not None:
                replica.actor.stop()

        async with trio.open_nursery() as nursery:
            for replica in self.replicas:
                nursery.start_soon(stop, replica)

    @property
    def replacing(self) -> bool:
        """Whether a replica is being replaced by command, so that a request without a replica waits instead of
        failing."""
        return bool(self.changing) or any(replica.replacement_pending for replica in self.replicas)

    def expected_s(self) -> float:
        """Seconds until a replica is likely to be ready; 0 if a replica is ready."""
        return min(replica.expected_s() for replica in self.replicas)

    def unavailable(self) -> OmniError:
        """Return the error (503) for a request without a replica, with the time after which there may be a replica."""
        return stage_unavailable(self.stage.name, max(1.0, self.expected_s()))

    def bind(self, request: Request, sources: Sequence[StageReplica] = ()) -> StageReplica:
        """Choose a live replica for a request: the :meth:`pinned` replica, or the choice of the stage's balancer.

        Of several replicas, only those with links to ``sources`` (the replicas that will feed it) are candidates.
        Raises ``stage_unavailable`` (503) without a candidate.
        """
        pinned = None if request.affinity is None else self.pinned(request)
        if pinned is None or not _can_take(pinned, sources):
            return self._choose(request, sources)
        if self.balancer is not None:
            self.balancer.kept(pinned, request)
        return pinned

    def options(self, request: Request) -> list[StageReplica]:
        """Return the candidates for a request: the :meth:`pinned` replica, then the others, the less busy first."""
        pinned = self.pinned(request)
        return sorted(
            (replica for replica in self.replicas if replica.accepts_requests),
            key=lambda replica: (replica is not pinned, len(replica.requests)),
        )

    def pinned(self, request: Request) -> StageReplica | None:
        """Return the previous replica of the request's affinity, if that replica can take the request."""
        if request.affinity is None:
            return None
        found = self._affinities.get(request.affinity)
        return found if found is not None and found.accepts_requests else None

    def pin(self, affinity: str, replica: StageReplica) -> None:
        """Bind the affinity to a replica from now on."""
        self._affinities.pop(affinity, None)
        if len(self._affinities) >= _MAX_AFFINITIES:
            del self._affinities[next(iter(self._affinities))]
        self._affinities[affinity] = replica  # at the end, because the least recently used affinity is dropped first

    def forget(self, replica: StageReplica) -> None:
        """Take note that the caches of a living replica are empty now."""
        if self.balancer is not None:
            self.balancer.forget(replica)

    def _choose(self, request: Request, sources: Sequence[StageReplica]) -> StageReplica:
        replicas = self.replicas
        if self.balancer is None:  # the common case, for each stage of each request
            if not replicas[0].accepts_requests:
                raise self.unavailable()
            return replicas[0]
        live = [replica for replica in replicas if _can_take(replica, sources)]
        if not live:
            raise self.unavailable()
        self._turn += 1
        # The turn breaks ties, so that an idle pool still spreads its requests.
        start = self._turn % len(live)
        return self.balancer.choose(live[start:] + live[:start], request)

    def health(self, unlinked: tuple[str, ...] = ()) -> StageHealth:
        """Return the health of the stage. ``unlinked`` are the neighbour stages without links."""
        replicas, now = self.replicas, trio.current_time()
        live = sum(replica.live and not replica.drained for replica in replicas)
        exits = dict.fromkeys(EXIT_CAUSES, 0)
        for replica in replicas:
            for cause, count in replica.history.exits.items():
                exits[cause] += count
        lasts = [replica.history.last_exit for replica in replicas if replica.history.last_exit is not None]
        downs = [replica.history.down_since for replica in replicas if replica.history.down_since is not None]
        return StageHealth(
            stage=self.stage.name,
            live=live,
            wanted=len(replicas),
            states=tuple(replica.state.value for replica in replicas),
            restarts=sum(max(0, replica.incarnation - 1) for replica in replicas),
            progress=next((replica.progress for replica in replicas if not replica.live), "ready"),
            last_error=next((r.last_error for r in replicas if r.last_error is not None), None),
            replacing=self.replacing,
            down_s=None if live else now - max(downs, default=now),
            attempt_s=None if live else min((r.pause_s for r in replicas if not r.live), default=0.0) or None,
            next_s=None if live else self.expected_s(),
            exits=exits,
            last_exit=max(lasts, key=lambda end: end.at, default=None),
            unlinked=unlinked,
        )


def _can_take(replica: StageReplica, sources: Sequence[StageReplica]) -> bool:
    """Whether a replica has links to all sources. (A TCP link may be broken while both its ends live.)"""
    place = replica.stage.name, replica.index
    return replica.accepts_requests and all(place in source.links for source in sources)
