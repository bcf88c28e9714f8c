"""Balancers, which spread a pool's requests over its replicas. A deploy file names one in ``stages.NAME.balancer``."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, cast

from omni_actors.pipelines.plan import PlanError, StagePlan
from omni_actors.plugins.contract import CONTRACT
from omni_actors.protocol.request import Request
from omni_actors.stages.prefix import PrefixIndex

if TYPE_CHECKING:
    from omni_actors.stages.replica import StageReplica

log = logging.getLogger("omni_actors.stages")


class Candidate(Protocol):
    """A replica that may get a request."""

    @property
    def index(self) -> int:
        """The replica's number in the pool, from 0."""
        ...

    @property
    def incarnation(self) -> int:
        """The number of the incarnation. Another number means another process, with empty caches."""
        ...

    @property
    def load(self) -> int:
        """The number of requests in the replica."""
        ...

    @property
    def info(self) -> dict[str, Any]:
        """The facts that the engine reported after loading."""
        ...


class Balancer(ABC):
    """A balancer, which chooses a replica for each request of one stage.

    A balancer runs in the serving process, in one thread, and must not wait, import torch or compute for long: each
    request of the stage passes through the balancer. A subclass states the version of this contract for which it was
    written (``contract = 1``), and is constructed with the stage's plan. A stage with one replica has no balancer.
    """

    contract: ClassVar[int]

    def __init__(self, stage: StagePlan) -> None:
        self.stage = stage

    @abstractmethod
    def choose(self, candidates: Sequence[Candidate], request: Request) -> Candidate:
        """Choose the replica for a request.

        Args:
            candidates: At least one replica, all of which can take the request. Each call begins with another replica,
                so that a balancer that takes the first of equals still spreads requests.
            request: The request.

        Returns:
            One of ``candidates``; the request then goes there.
        """

    def kept(self, candidate: Candidate, request: Request) -> None:
        """Take note of a request that goes to a replica without a choice, because of the request's affinity."""
        return

    def forget(self, candidate: Candidate) -> None:
        """Take note that the caches of a living replica are empty now."""
        return


class LeastQueue(Balancer):
    """A balancer that chooses the replica with the fewest requests."""

    contract = CONTRACT

    def choose(self, candidates: Sequence[Candidate], request: Request) -> Candidate:
        return min(candidates, key=lambda it: it.load)


class RoundRobin(Balancer):
    """A balancer that chooses the replicas in turn, whatever their load."""

    contract = CONTRACT

    def choose(self, candidates: Sequence[Candidate], request: Request) -> Candidate:
        return candidates[0]


class PrefixCache(Balancer):
    """A balancer that chooses a replica likely to have the prompt's beginning in its cache, unless much busier."""

    contract = CONTRACT

    def __init__(self, stage: StagePlan) -> None:
        super().__init__(stage)
        self.prefixes = PrefixIndex()

    def choose(self, candidates: Sequence[Candidate], request: Request) -> Candidate:
        return self.prefixes.choose(cast("Sequence[StageReplica]", candidates), request)

    def kept(self, candidate: Candidate, request: Request) -> None:
        self.prefixes.choose([cast("StageReplica", candidate)], request)

    def forget(self, candidate: Candidate) -> None:
        self.prefixes.forget(cast("StageReplica", candidate))


class Guarded:
    """A wrapper by which a balancer's faults cost no request.

    When the balancer raises, or chooses a replica that was not a candidate, the least busy replica is taken. The log
    reports each kind of fault once.
    """

    def __init__(self, inner: Balancer) -> None:
        self.inner = inner
        self._said: set[str] = set()

    def choose(self, candidates: Sequence[StageReplica], request: Request) -> StageReplica:
        try:
            chosen = self.inner.choose(candidates, request)
        except Exception as error:
            self._say("choose", error)
        else:
            for candidate in candidates:
                if candidate is chosen:
                    return candidate
            self._say("choose", TypeError(f"it returned {type(chosen).__name__}, which is none of the candidates"))
        return min(candidates, key=lambda it: it.load)

    def kept(self, candidate: StageReplica, request: Request) -> None:
        try:
            self.inner.kept(candidate, request)
        except Exception as error:
            self._say("kept", error)

    def forget(self, candidate: StageReplica) -> None:
        try:
            self.inner.forget(candidate)
        except Exception as error:
            self._say("forget", error)

    def _say(self, method: str, error: Exception) -> None:
        name = f"{type(self.inner).__name__}.{method}"
        if name not in self._said:
            self._said.add(name)
            log.error("%s failed; requests go to the least busy replica instead", name, exc_info=error)


def balancer_for(stage: StagePlan) -> Guarded:
    """Make the stage's balancer. Raises :class:`PlanError` when a plug-in's class cannot be constructed."""
    try:
        return Guarded(resolve_name(stage.balancer_class)(stage))
    except (Exception, SystemExit) as error:
        name = f"balancer '{stage.balancer}' ({stage.balancer_class})"
        raise PlanError(f"{name} of stage '{stage.name}' cannot be made: {error!r}") from error
