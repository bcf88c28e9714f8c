"""StagePool: all replicas of one stage, and the choice among them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import trio

from omni_actors.actors.supervisor import Restarts, Supervisor
from omni_actors.pipelines.plan import StagePlan
from omni_actors.protocol.errors import OmniError, stage_unavailable
from omni_actors.protocol.request import Request
from omni_actors.protocol.status import EXIT_CAUSES, StageHealth
from omni_actors.stages.balancers import balancer_for
from omni_actors.stages.incarnation import start_incarnation
from omni_actors.stages.replica import StageReplica

_MAX_AFFINITIES = 4096


class StagePool:
    """The replicas of a stage. A request is bound to one replica for its whole life, so its chunks stay in order."""

    def __init__(self, stage: StagePlan, replicas: tuple[StageReplica, ...]) -> None:
        self.stage = stage
        self.replicas = replicas
        self.changing: set[StageReplica] = set()
        """Replicas that a command is at, which replaces them."""
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
        """Whether a replica is being replaced by command: a request that finds none waits, and is not refused."""
        return bool(self.changing) or any(replica.replacement_pending for replica in self.replicas)

    def expected_s(self) -> float:
        """Seconds until a replica is likely to be ready: 0 if one is."""
        return min(replica.expected_s() for replica in self.replicas)

    def unavailable(self) -> OmniError:
        """The refusal (503) of a request that finds no replica, with the time after which there may be one."""
        return stage_unavailable(self.stage.name, max(1.0, self.expected_s()))

    def bind(self, request: Request, sources: Sequence[StageReplica] = ()) -> StageReplica:
        """A live replica, if there are several one that ``sources``, which will feed it, have links to: the one that
        is :meth:`pinned` if it is such a one, else by the stage's balancer.

        Raises ``stage_unavailable`` (503) when there is none.
        """
        pinned = None if request.affinity is None else self.pinned(request)
        if pinned is None or not _can_take(pinned, sources):
            return self._choose(request, sources)
        if self.balancer is not None:
            self.balancer.kept(pinned, request)
        return pinned

    def options(self, request: Request) -> list[StageReplica]:
        """All that it may be bound to: the one that is :meth:`pinned`, then the others, the less busy ones first."""
        pinned = self.pinned(request)
        return sorted(
            (replica for replica in self.replicas if replica.accepts_requests),
            key=lambda replica: (replica is not pinned, len(replica.requests)),
        )

    def pinned(self, request: Request) -> StageReplica | None:
        """The replica that the request's affinity had before, if it may have it again."""
        if request.affinity is None:
            return None
        found = self._affinities.get(request.affinity)
        return found if found is not None and found.accepts_requests else None

    def pin(self, affinity: str, replica: StageReplica) -> None:
        """The affinity has this one from now on."""
        self._affinities.pop(affinity, None)
        if len(self._affinities) >= _MAX_AFFINITIES:
            del self._affinities[next(iter(self._affinities))]
        self._affinities[affinity] = replica  # at the end: the one that was not used for longest goes first

    def forget(self, replica: StageReplica) -> None:
        """What a replica had cached is gone, though it history."""
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
        """``unlinked`` are the neighbours that it lacks links to."""
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
    """A link by TCP may be broken, and not made anew yet, while both its ends live."""
    place = replica.stage.name, replica.index
    return replica.accepts_requests and all(place in source.links for source in sources)
