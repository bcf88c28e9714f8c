"""The one error type that crosses rooms and processes.

An error is a value (:class:`ErrorInfo`, a struct that travels in frames) and an exception that carries it
(:class:`OmniError`). Entrypoints render the value as OpenAI's ``{"error": {message, type, param, code}}``.
Tracebacks never travel with it: the process where it happened logs them.
"""

from __future__ import annotations

import msgspec


class ErrorInfo(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a client may know about a failure.

    ``status`` is the HTTP status it maps to, ``stage`` the stage that failed (if any), ``retry_after`` seconds.
    """

    message: str
    type: str = "server_error"
    code: str | None = None
    param: str | None = None
    status: int = 500
    stage: str | None = None
    retry_after: float | None = None


class OmniError(Exception):
    """A typed failure of one request (or of the start of a deployment)."""

    def __init__(self, info: ErrorInfo) -> None:
        super().__init__(info.message)
        self.info = info


def invalid_request(message: str, param: str | None = None, code: str | None = None) -> OmniError:
    """The client's mistake (400), naming the field in ``param``."""
    return OmniError(ErrorInfo(message=message, type="invalid_request_error", code=code, param=param, status=400))


def not_found(message: str, param: str | None = None, code: str | None = None) -> OmniError:
    """Unknown model, voice, route or id (404)."""
    return OmniError(ErrorInfo(message=message, type="invalid_request_error", code=code, param=param, status=404))


def too_large(message: str, param: str | None = None) -> OmniError:
    """A body or a media file over its limit (413)."""
    return OmniError(
        ErrorInfo(message=message, type="invalid_request_error", code="too_large", param=param, status=413)
    )


def deadline_exceeded(message: str = "The request did not finish before its deadline.") -> OmniError:
    """The request's deadline passed (408)."""
    return OmniError(ErrorInfo(message=message, type="timeout_error", code="deadline_exceeded", status=408))


def overloaded(message: str, retry_after: float = 1.0) -> OmniError:
    """A bound is reached; the client should come back after ``retry_after`` seconds (429)."""
    return OmniError(
        ErrorInfo(message=message, type="overloaded_error", code="overloaded", status=429, retry_after=retry_after)
    )


def _unavailable(stage: str, message: str, code: str, retry_after: float) -> OmniError:
    return OmniError(
        ErrorInfo(
            message=message, type="unavailable_error", code=code, status=503, stage=stage, retry_after=retry_after
        )
    )


def stage_unavailable(stage: str, retry_after: float = 1.0) -> OmniError:
    """The stage has no live replica (503)."""
    return _unavailable(stage, f"Stage '{stage}' has no live replica.", "stage_unavailable", retry_after)


def stage_died(stage: str, retry_after: float = 1.0) -> OmniError:
    """The worker that held the request ended while the request was in it (503)."""
    return _unavailable(
        stage, f"The worker of stage '{stage}' ended while it held this request.", "stage_died", retry_after
    )


def stage_replaced(stage: str, retry_after: float = 1.0) -> OmniError:
    """The worker that held the request was ended (503), by command or because another request was stuck in it: that
    says nothing about this one."""
    return _unavailable(
        stage, f"The worker of stage '{stage}' was replaced while it held this request.", "stage_replaced", retry_after
    )


def poison(stage: str) -> OmniError:
    """A request that ends every worker it gets into (500): it is not tried again."""
    return OmniError(
        ErrorInfo(
            message=f"The worker of stage '{stage}' ended on this request, also when it held no other one.",
            code="poison",
            status=500,
            stage=stage,
        )
    )


def not_resumable(stage: str, retry_after: float = 1.0) -> OmniError:
    """A worker ended, and what the client has of the request's output cannot be continued (503). It may be asked for
    anew."""
    return _unavailable(
        stage,
        f"The worker of stage '{stage}' ended, and this request's output cannot be continued.",
        "not_resumable",
        retry_after,
    )


def link_lost(stage: str, retry_after: float = 1.0) -> OmniError:
    """The connection between two stages' workers broke before the input was whole (503)."""
    return _unavailable(stage, f"Stage '{stage}' lost the connection that its input came by.", "link_lost", retry_after)


def stage_failed(stage: str, message: str = "The stage failed on this request.") -> OmniError:
    """An unexpected exception inside a stage (500); the message names the stage, never a traceback."""
    return OmniError(ErrorInfo(message=f"Stage '{stage}': {message}", code="stage_failed", status=500, stage=stage))


def out_of_memory(stage: str) -> OmniError:
    """The stage has not enough memory for this request, also when it computes nothing else (503)."""
    return OmniError(
        ErrorInfo(
            message=f"Stage '{stage}': not enough memory for this request.",
            type="unavailable_error",
            code="out_of_memory",
            status=503,
            stage=stage,
        )
    )
