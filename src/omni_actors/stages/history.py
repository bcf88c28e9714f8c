"""The history of a replica's incarnations: how they ended, and how long a start takes."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field, replace

import msgspec
import trio

from omni_actors.actors.restarts import Restarts
from omni_actors.pipelines.plan import DeploymentLimits
from omni_actors.protocol.errors import ErrorInfo
from omni_actors.protocol.status import ExitCause, WorkerExit

UNKNOWN_START_S = 5.0
"""Seconds of a start, as expected before the first start."""


@dataclass(slots=True)
class ReplicaHistory:
    """The history of one replica. Times are trio's."""

    started_at: float | None = None
    """The time at which the current incarnation began; ``None`` during the backoff."""
    ready_at: float | None = None
    """The time at which the current incarnation became ready."""
    served: int = 0
    """The number of requests submitted to the current incarnation."""
    down_since: float | None = None
    """The time since which the replica has not been ready."""
    start_s: float | None = None
    """Seconds of the last successful start."""
    last_exit: WorkerExit | None = None
    """The end of the latest incarnation that has ended."""
    exits: Counter[ExitCause] = field(default_factory=Counter)

    def start(self) -> None:
        self.started_at = trio.current_time()
        if self.down_since is None:
            self.down_since = self.started_at
        self.ready_at, self.served = None, 0

    def become_ready(self) -> None:
        assert self.started_at is not None
        self.ready_at = trio.current_time()
        self.start_s = self.ready_at - self.started_at
        self.down_since = None

    def exited(self, cause: ExitCause | None, error: ErrorInfo | None) -> None:
        """Record the end of an incarnation. Without a cause the deployment ends, and no end is recorded."""
        now = trio.current_time()
        if cause is not None:
            ready_s = None if self.ready_at is None else now - self.ready_at
            known = error or ErrorInfo(message="ended by command")
            self.last_exit = WorkerExit(cause, known, now, time.time(), ready_s, self.served)
            self.exits[cause] += 1
        if self.ready_at is not None:
            self.down_since = now
        self.started_at = self.ready_at = None

    def add_to_exit(self, death: str) -> None:
        """Append the death of the process to the end of the last incarnation."""
        if self.last_exit is not None and death not in self.last_exit.error.message:
            error = msgspec.structs.replace(self.last_exit.error, message=f"{self.last_exit.error.message} ({death})")
            self.last_exit = replace(self.last_exit, error=error)

    def expected_s(self, pause_s: float) -> float:
        """Return the seconds until the replica is likely to be ready: 0 for a ready replica.

        The estimate is the rest of the backoff, ``pause_s``, plus the time of the last start.
        """
        if self.ready_at is not None:
            return 0.0
        start_s = UNKNOWN_START_S if self.start_s is None else self.start_s
        if self.started_at is not None:
            return max(0.0, self.started_at + start_s - trio.current_time())
        return pause_s + start_s


def restart_policy(limits: DeploymentLimits) -> Restarts:
    """Return the policy of restarts. Pools never give up: a failing stage is restarted for ever, while others serve."""
    return Restarts(
        limit=None,
        first_s=limits.restart_delay_s,
        cap_s=limits.restart_delay_max_s,
        healthy_s=limits.restart_reset_s,
    )
