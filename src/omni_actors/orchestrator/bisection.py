"""The policy of recovery: which requests may resume after a worker's death, and how the one that ends workers is found.

A worker seldom dies of its requests, so the first death that a request sees costs the request one resume and nothing
else. A request that sees the worker of the same stage die once more is a *suspect*, and any of the suspects may be the
*poison request* that ends workers. Suspects are tested in *quarantine*: one at a time, on the replica that died, which
takes no other requests meanwhile. A suspect that gets further than before is *exonerated*, and stays in the worker
while the next suspect is tested. If the worker dies all the same, one of the requests in it was exonerated too early:
they are tested again, the last ones first, with at most half as many of them in the worker at once, until one is alone
or all have ended. A suspect that is alone in a worker when the worker dies is poison, and is refused.

Everything here is pure: no task, clock, replica or process. :mod:`omni_actors.orchestrator.recovery` drives it.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, TypeVar

R = TypeVar("R")

RECOVERABLE = frozenset({"stage_died", "stage_replaced", "link_lost"})
"""Error codes of failures after which a request may go on in another attempt."""

CRASHES_IN_COMPANY = 1
"""Deaths of one stage's worker after which a request still resumes among others; after one more it is a suspect."""


class Decision(Enum):
    """The decision about a request whose stage was lost."""

    FAIL = "fail"
    """The request fails with the error of the stage."""
    POISON = "poison"
    """The request ends workers, and is refused."""
    RESUME = "resume"
    """The request goes on in another attempt."""
    QUARANTINE = "quarantine"
    """The request goes on in another attempt, as a suspect that is tested."""


@dataclass(slots=True)
class CrashHistory:
    """The deaths that one request has seen."""

    resumes: int = 0
    """Resumes that the request has used of the deployment's ``max_resumes``."""
    crashes: Counter[str] = field(default_factory=Counter)
    """Deaths that the request may have caused, by stage."""
    awaited_since: dict[str, float] = field(default_factory=dict)
    """Stages whose first report after a death is awaited, with the trio time of that death."""

    def decide(self, stage: str, code: str | None, *, alone: bool, in_test: bool, max_resumes: int) -> Decision:
        """Count a stage that the request has lost, and decide what becomes of the request.

        Args:
            stage: The name of the stage.
            code: The error code, one of :data:`RECOVERABLE`.
            alone: No other request was in the worker.
            in_test: The worker was in quarantine. A death with company then costs no resume: most of the requests in
                the worker are there on account of another one.
            max_resumes: Resumes that the deployment allows a request.
        """
        if not max_resumes:
            return Decision.FAIL
        died = code == "stage_died"
        if died:
            if alone and self.crashes[stage] >= CRASHES_IN_COMPANY:
                return Decision.POISON
            self.crashes[stage] += 1
        if code == "link_lost" or (died and (alone or not in_test)):
            self.resumes += 1
        if self.resumes > max_resumes:
            return Decision.FAIL
        return Decision.QUARANTINE if died and self.crashes[stage] > CRASHES_IN_COMPANY else Decision.RESUME


class Bisection(Generic[R]):
    """The suspects of one stage, and the order in which they are tested."""

    def __init__(self) -> None:
        self.waiting: deque[R] = deque()
        """Suspects that have not been tested since they were last accused."""
        self.candidate: R | None = None
        """The suspect that is being tested."""
        self.admitted: set[R] = set()
        """Suspects that have been let into the quarantined worker: the candidate and those that were exonerated."""
        self.limit: int | None = None
        """Suspects that may be in the worker at once, after a death with several in it; ``None`` is no bound."""

    @property
    def exhausted(self) -> bool:
        """Whether no suspect is left: none waits, is tested, or is in the worker."""
        return self.candidate is None and not self.waiting and not self.admitted

    def accuse(self, suspect: R, *, again: bool) -> None:
        """Let a suspect wait for a test: before the others if it was in the quarantined worker (``again``), else behind
        them."""
        self.admitted.discard(suspect)
        if self.candidate is suspect:
            self.candidate = None
        if again:
            self.waiting.appendleft(suspect)
        else:
            self.waiting.append(suspect)

    def worker_died(self, count: int) -> None:
        """Halve the number of suspects in the worker: it died in quarantine with ``count`` requests, two or more."""
        self.limit = max(1, count // 2)

    def found(self) -> None:
        """Lift the limit: the poison request is known."""
        self.limit = None

    def holds_back(self, count: int) -> bool:
        """Whether no further suspect may be let into the worker, which holds ``count`` suspects. After a death of
        several the test goes on until the ones in the worker have ended, since one of them may be poison."""
        return self.limit is not None and count > 0 and (count >= self.limit or not self.waiting)

    def test_next(self) -> R:
        """Make the first waiting suspect the candidate."""
        self.candidate = suspect = self.waiting.popleft()
        self.admitted.add(suspect)
        return suspect

    def forget(self, suspect: R) -> None:
        """Drop a suspect that has ended. One that is being tested stays the candidate until no worker holds it."""
        self.admitted.discard(suspect)
        if suspect in self.waiting:
            self.waiting.remove(suspect)
