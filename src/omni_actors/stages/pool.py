"""StagePool: all replicas of one stage, and the choice among them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from omni_actors.pipelines.plan import StagePlan
from omni_actors.protocol.errors import ErrorInfo, stage_unavailable
from omni_actors.stages.replica import StageReplica

_MAX_AFFINITIES = 4096


@dataclass(frozen=True, slots=True)
class StageHealth:
    """What ``/health`` says about a stage."""

    stage: str
    live: int
    wanted: int
    states: tuple[str, ...]
    restarts: int
    progress: str
    last_error: ErrorInfo | None


class StagePool:
    """The replicas of a stage. A request is bound to one replica for its whole life, so its chunks stay in order."""

    def __init__(self, stage: StagePlan, replicas: tuple[StageReplica, ...]) -> None:
        self.stage = stage
        self.replicas = replicas
        self._turn = 0
        self._affinities: dict[str, StageReplica] = {}

    def bind(self, affinity: str | None = None, sources: Sequence[StageReplica] = ()) -> StageReplica:
        """A live replica, if there are several one that ``sources``, which will feed it, have links to: the one that
        ``affinity`` had before if it is such a one, else by the stage's balancer.

        Raises ``stage_unavailable`` (503) when there is none.
        """
        if affinity is None:
            return self._choose(sources)
        kept = self._affinities.pop(affinity, None)
        chosen = kept if kept is not None and _can_take(kept, sources) else self._choose(sources)
        if len(self._affinities) >= _MAX_AFFINITIES:
            del self._affinities[next(iter(self._affinities))]
        self._affinities[affinity] = chosen  # at the end: the one that was not used for longest goes first
        return chosen

    def _choose(self, sources: Sequence[StageReplica]) -> StageReplica:
        replicas = self.replicas
        if len(replicas) == 1:  # the common case, for each stage of each request
            if not replicas[0].live:
                raise stage_unavailable(self.stage.name)
            return replicas[0]
        live = [replica for replica in replicas if _can_take(replica, sources)]
        if not live:
            raise stage_unavailable(self.stage.name)
        self._turn += 1
        if self.stage.balancer == "round_robin":
            return live[self._turn % len(live)]
        # The turn breaks ties, so that an idle pool still spreads its requests.
        start = self._turn % len(live)
        return min(live[start:] + live[:start], key=lambda replica: len(replica.requests))

    def health(self) -> StageHealth:
        return StageHealth(
            stage=self.stage.name,
            live=sum(replica.live for replica in self.replicas),
            wanted=len(self.replicas),
            states=tuple(replica.state.value for replica in self.replicas),
            restarts=sum(max(0, replica.incarnation - 1) for replica in self.replicas),
            progress=next((replica.progress for replica in self.replicas if not replica.live), "ready"),
            last_error=next((r.last_error for r in self.replicas if r.last_error is not None), None),
        )


def _can_take(replica: StageReplica, sources: Sequence[StageReplica]) -> bool:
    """A link by TCP may be broken, and not made anew yet, while both its ends live."""
    place = replica.stage.name, replica.index
    return replica.live and all(place in source.links for source in sources)
