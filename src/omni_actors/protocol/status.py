"""The status of a deployment as values: the health of its stages, the load on admission, and the counts of resumed
requests.

The orchestrator makes these values; the API handlers and the metrics read them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from omni_actors.protocol.errors import ErrorInfo

ExitCause = Literal["start", "crash", "stuck", "protocol", "unreleased", "killed", "replaced"]
"""Why a worker process ended. ``start``: the worker did not become ready. ``crash``: the process ended by itself.
``stuck``: the worker had work and made no progress. ``protocol``: the worker sent frames that do not decode or do not
fit. ``unreleased``: the worker did not release a request that was over. ``killed`` and ``replaced``: an operator's
command."""

EXIT_CAUSES: tuple[ExitCause, ...] = get_args(ExitCause)
"""Every :data:`ExitCause`, in a fixed order."""


@dataclass(frozen=True, slots=True)
class WorkerExit:
    """The end of one incarnation of a replica."""

    cause: ExitCause
    error: ErrorInfo
    at: float
    """Time of the exit on trio's clock."""
    wall: float
    """Time of the exit in seconds since the epoch."""
    ready_s: float | None
    """Seconds for which the worker had been ready; ``None`` if the worker never was."""
    served: int
    """Requests that the worker had been given."""


@dataclass(frozen=True, slots=True)
class StageHealth:
    """The health of one stage, as ``/health`` shows it."""

    stage: str
    live: int
    """Replicas that are ready and not drained."""
    wanted: int
    """Replicas that the deployment is to have."""
    states: tuple[str, ...]
    """The state of each replica."""
    restarts: int
    progress: str
    """The present step of the first replica that is not live, or ``ready``."""
    last_error: ErrorInfo | None
    replacing: bool = False
    """Whether a command is replacing a replica: new requests wait for that replica if no other one is live."""
    down_s: float | None = None
    """Seconds for which no replica has been ready; ``None`` if a replica is ready."""
    attempt_s: float | None = None
    """Seconds until the next start of a replica; ``None`` if a replica is ready or starting."""
    next_s: float | None = None
    """Expected seconds until a replica is ready; ``None`` if a replica is ready."""
    exits: Mapping[ExitCause, int] = field(default_factory=dict)
    """Workers that ended, by cause."""
    last_exit: WorkerExit | None = None
    unlinked: tuple[str, ...] = ()
    """Live neighbour stages to which no live replica of this stage has a link."""


@dataclass(frozen=True, slots=True)
class AdmissionLoad:
    """The requests that admission has let in, keeps waiting, and has refused."""

    running: Mapping[str, int]
    """Requests admitted and not yet released by every worker, by task."""
    waiting: Mapping[str, int]
    """Requests in the wait queue, by task."""
    waiting_bytes: int
    """Approximate size of the waiting requests in bytes."""
    stages: Mapping[str, int]
    """Admitted requests that are in a stage or will enter it, by stage."""
    refused: Mapping[str, int]
    """Refused requests, by reason."""


@dataclass(frozen=True, slots=True)
class ResumeCounts:
    """The outcomes of requests whose worker died, since the start of the deployment."""

    resumed: Mapping[str, int]
    """Attempts begun after a worker's death, by the stage of that worker."""
    poisoned: int
    """Requests refused because they repeatedly ended workers."""
    waiting: int
    """Requests that wait between two attempts, now."""
    pauses: int
    """Resumed requests that have had output from the new worker."""
    paused_s: float
    """Seconds between death and first new output, summed over ``pauses``."""
