"""Refusals of commands to replicas: each names the command, the reason, and what to do instead.

A command with an unknown stage or replica is 404, a command that the stage's engine never obeys 400, a command that
does not fit the replica's current state 409, and a command that the worker did not carry out 503.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from omni_actors.protocol.errors import ErrorInfo, OmniError, invalid_request, not_found

if TYPE_CHECKING:
    from omni_actors.stages.replica import StageReplica


def named(replica: StageReplica) -> str:
    """Return the name of a replica in the texts of refusals."""
    return f"replica {replica.index} of stage '{replica.stage.name}'"


def unknown_stage(stage: str, known: Iterable[str]) -> OmniError:
    """Return the error (404) for a stage that the deployment does not have."""
    return not_found(f"There is no stage '{stage}'. The stages are: {', '.join(known)}.", "stage", "unknown_stage")


def unknown_replica(stage: str, index: int, count: int) -> OmniError:
    """Return the error (404) for a replica that the stage does not have. Replicas are numbered from 0."""
    there = "one replica, number 0" if count == 1 else f"{count} replicas, numbered 0 to {count - 1}"
    return not_found(f"Stage '{stage}' has no replica {index}: it has {there}.", "index", "unknown_replica")


def unsupported(replica: StageReplica, action: str) -> OmniError:
    """Return the error (400) for a command that the engine of the stage never obeys."""
    if replica.stage.is_media:
        why = "the media process has no model that could sleep"
    else:
        why = f"its engine ({replica.stage.engine.rpartition(':')[2]}) cannot sleep; vLLM's engine can"
    instead = {
        "sleep": "Use 'drain' to keep new requests away from it; its memory is freed when the server ends.",
        "wake": "If it is drained, 'undrain' lets it take requests again.",
    }
    message = f"Cannot {action} {named(replica)}: {why}. {instead[action]}"
    return invalid_request(message, "action", "unsupported_action")


def busy(replica: StageReplica, action: str, other: str) -> OmniError:
    """Return the error (409) for a replica that is busy with another command."""
    return _conflict(
        replica,
        f"Cannot {action} {named(replica)} now: an earlier '{other}' is still being carried out. Try again when "
        "that is done ('omni-actors replicas list' shows its progress); 'kill' ends its worker at once.",
        "replica_busy",
    )


def not_ready(replica: StageReplica, action: str, state: str) -> OmniError:
    """Return the error (409) for a replica that has no worker yet."""
    return _conflict(
        replica,
        f"Cannot {action} {named(replica)} now: it is {state}, and only a ready one can be told to. Try again when "
        "'omni-actors replicas list' shows it as ready.",
        "replica_not_ready",
        max(1.0, replica.expected_s()),
    )


def no_worker(replica: StageReplica) -> OmniError:
    """Return the error (409) for a kill between two workers."""
    return _conflict(
        replica,
        f"Cannot kill {named(replica)} now: its worker has ended already. The next worker starts by itself.",
        "replica_not_running",
        max(1.0, replica.expected_s()),
    )


def asleep(replica: StageReplica, action: str, level: int) -> OmniError:
    """Return the error (409) for a command that does not fit a sleeping replica."""
    return _conflict(
        replica,
        f"Cannot {action} {named(replica)}: it is asleep (level {level}). Use 'wake' first, which also lets "
        "it take requests again.",
        "replica_asleep",
    )


def awake(replica: StageReplica) -> OmniError:
    """Return the error (409) for a replica that is not asleep."""
    drained = " It is drained, though: 'undrain' lets it take requests again." if replica.drained else ""
    return _conflict(replica, f"Cannot wake {named(replica)}: it is not asleep.{drained}", "replica_awake")


def not_done(replica: StageReplica, action: str, why: str) -> OmniError:
    """Return the error (503) for a command that the worker did not confirm."""
    return OmniError(
        ErrorInfo(
            message=f"Could not {action} {named(replica)}: {why}.",
            type="unavailable_error",
            code="command_failed",
            status=503,
            stage=replica.stage.name,
            retry_after=max(1.0, replica.expected_s()),
        )
    )


def did_not_start(replica: StageReplica) -> OmniError:
    """Return the error (503) for a new worker that did not become ready."""
    why = "" if replica.history.last_exit is None else f": {replica.history.last_exit.error.message}"
    return OmniError(
        ErrorInfo(
            message=f"The new worker of {named(replica)} did not start{why}. The server tries again; its log "
            "has the worker's output.",
            type="unavailable_error",
            code="replacement_failed",
            status=503,
            stage=replica.stage.name,
            retry_after=max(1.0, replica.expected_s()),
        )
    )


def _conflict(replica: StageReplica, message: str, code: str, retry_after: float | None = None) -> OmniError:
    return OmniError(
        ErrorInfo(
            message=message,
            type="conflict_error",
            code=code,
            param="index",
            status=409,
            stage=replica.stage.name,
            retry_after=retry_after,
        )
    )
