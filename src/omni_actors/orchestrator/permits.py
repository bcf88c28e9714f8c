"""The permits of admitted requests: the capacity held of each limit."""

from __future__ import annotations

from dataclasses import dataclass

import trio

from omni_actors.orchestrator.capacity import CapacityLimit
from omni_actors.orchestrator.estimate import tokens_of
from omni_actors.pipelines.subgraph import StagePart
from omni_actors.protocol.request import Request


@dataclass(slots=True, eq=False)
class RequestClass:
    """The class of all requests with the same inputs and outputs of a task, and so with the same capacity limits."""

    task: str
    limits: tuple[CapacityLimit, ...]
    """The limits that these requests need, the deployment's first."""
    counted: tuple[tuple[CapacityLimit, StagePart], ...]
    """The stages where tokens are counted, with their limits."""
    running: int = 0
    """Requests of the class that hold a permit."""

    def estimate(self, request: Request) -> tuple[int, ...]:
        """Return the estimated tokens of a request at each limit of :attr:`counted`."""
        return tuple(tokens_of(request, part) for _, part in self.counted)

    def tokens_at(self, limit: CapacityLimit, tokens: tuple[int, ...]) -> int:
        """Return the request's estimate at a limit; 0 where tokens are not counted."""
        for (counted, _), count in zip(self.counted, tokens, strict=True):
            if counted is limit:
                return count
        return 0

    def fits(self, tokens: tuple[int, ...]) -> bool:
        """Return whether every limit has capacity for a request of this estimate."""
        return all(limit.has_capacity(self.tokens_at(limit, tokens)) for limit in self.limits)

    def acquire(self, tenant: str, tokens: tuple[int, ...]) -> Permit:
        """Take capacity of every limit, and return the permit for it."""
        for limit in self.limits:
            limit.used += 1
        if tokens:
            for (limit, _), count in zip(self.counted, tokens, strict=True):
                limit.tokens += count
        self.running += 1
        return Permit(self, tenant, tokens)


@dataclass(slots=True, eq=False)
class Permit:
    """The capacity that an admitted request holds."""

    request_class: RequestClass
    tenant: str
    tokens: tuple[int, ...]
    """Estimated tokens at each limit of :attr:`RequestClass.counted`."""
    released: tuple[CapacityLimit, ...] = ()
    """Limits of stages that have finished with the request already."""

    def release(self, limit: CapacityLimit) -> None:
        """Give back the capacity held of one limit."""
        limit.used -= 1
        if self.tokens:
            limit.tokens -= self.request_class.tokens_at(limit, self.tokens)
        if limit.rate.since is not None:
            limit.record_release(trio.current_time())

    def release_all(self) -> None:
        """Give back the remaining capacity of all limits."""
        self.request_class.running -= 1
        for limit in self.request_class.limits:
            if limit not in self.released:
                self.release(limit)

    def reacquire(self) -> None:
        """Take again the capacity given back by stages, over the limit if need be."""
        for limit in self.released:
            limit.used += 1
            limit.tokens += self.request_class.tokens_at(limit, self.tokens)
        self.released = ()
