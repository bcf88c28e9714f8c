"""What is remembered of a replica's lives: how they ended, and how long a start takes."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field, replace

import msgspec
import trio

from omni_actors.actors.supervisor import Restarts
from omni_actors.pipelines.plan import DeploymentLimits
from omni_actors.protocol.errors import ErrorInfo
from omni_actors.protocol.status import ExitCause, WorkerExit

UNKNOWN_START_S = 5.0
"""How long a start is expected to take before there was one."""


@dataclass(slots=True)
class ReplicaHistory:
    """The memory of one replica. Times are trio's."""

    started_at: float | None = None
    """When the current life began; ``None`` between two."""
    ready_at: float | None = None
    """When the current life became ready."""
    served: int = 0
    """Requests that the current life has got."""
    down_since: float | None = None
    """Since when it has not been ready."""
    start_s: float | None = None
    """How long the last successful start took."""
    last_exit: WorkerExit | None = None
    """How the last life that ended came to its end."""
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
        """``None`` as cause: the deployment ends, which is nothing to remember."""
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
        """How the process ended, behind what is known of the last life's end."""
        if self.last_exit is not None and death not in self.last_exit.error.message:
            error = msgspec.structs.replace(self.last_exit.error, message=f"{self.last_exit.error.message} ({death})")
            self.last_exit = replace(self.last_exit, error=error)

    def expected_s(self, pause_s: float) -> float:
        """Seconds until it is likely to be ready: 0 when it is; ``pause_s``, if it is between two lives, and what a
        start took the last time."""
        if self.ready_at is not None:
            return 0.0
        start_s = UNKNOWN_START_S if self.start_s is None else self.start_s
        if self.started_at is not None:
            return max(0.0, self.started_at + start_s - trio.current_time())
        return pause_s + start_s


def restart_policy(limits: DeploymentLimits) -> Restarts:
    """When a worker is restarted. Pools never give up: a stage that cannot live is retried for ever, while the others
    serve."""
    return Restarts(
        limit=None,
        first_s=limits.restart_delay_s,
        cap_s=limits.restart_delay_max_s,
        healthy_s=limits.restart_reset_s,
    )
