"""How a pool's requests are spread over its replicas: what a deploy file's ``stages.NAME.balancer`` names."""

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
        """Its number in the pool, from 0."""
        ...

    @property
    def incarnation(self) -> int:
        """Its life: another number means another process, with nothing in its caches."""
        ...

    @property
    def load(self) -> int:
        """Requests that it holds."""
        ...

    @property
    def info(self) -> dict[str, Any]:
        """The facts that its engine told when it had loaded."""
        ...


class Balancer(ABC):
    """Chooses a replica for each request of one stage. It lives in the serving process, in one thread, and must not
    wait, import torch or compute for long: each request of the stage passes through it.

    Subclasses state the version of this contract that they were written for (``contract = 1``), and are made with the
    stage's plan. A stage with one replica has no balancer.
    """

    contract: ClassVar[int]

    def __init__(self, stage: StagePlan) -> None:
        self.stage = stage

    @abstractmethod
    def choose(self, candidates: Sequence[Candidate], request: Request) -> Candidate:
        """One of ``candidates``, which can all take the request and are at least one; it then goes there. The first of
        them is another one with each call, so that what treats them alike spreads requests all the same."""

    def kept(self, candidate: Candidate, request: Request) -> None:
        """A request goes to this one without a choice, since others with its affinity did."""
        return

    def forget(self, candidate: Candidate) -> None:
        """The replica's caches are empty now, though it lives."""
        return


class LeastQueue(Balancer):
    """The replica with the fewest requests."""

    contract = CONTRACT

    def choose(self, candidates: Sequence[Candidate], request: Request) -> Candidate:
        return min(candidates, key=lambda it: it.load)


class RoundRobin(Balancer):
    """One after the other, whatever they hold."""

    contract = CONTRACT

    def choose(self, candidates: Sequence[Candidate], request: Request) -> Candidate:
        return candidates[0]


class PrefixCache(Balancer):
    """The replica that is likely to have the beginning of the prompt in its cache, unless it is much busier."""

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
    """A balancer whose faults cost no request: where it raises, or chooses what it was not offered, the least busy
    replica is taken. Said once in the log for each kind of fault."""

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
    """The stage's balancer. Raises :class:`PlanError` when a plug-in's class cannot be made."""
    try:
        return Guarded(resolve_name(stage.balancer_class)(stage))
    except (Exception, SystemExit) as error:
        name = f"balancer '{stage.balancer}' ({stage.balancer_class})"
        raise PlanError(f"{name} of stage '{stage.name}' cannot be made: {error!r}") from error
