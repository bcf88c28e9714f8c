"""The one error type that crosses packages and processes.

An error is a value (:class:`ErrorInfo`, a struct in frames) and an exception around the value (:class:`OmniError`).
Entrypoints render the value as OpenAI's ``{"error": {message, type, param, code}}``. Tracebacks never travel: the
process of the failure logs them.

    >>> error = invalid_request("'n' must be at least 1.", "n", "invalid_value")
    >>> error.info.status, error.info.param
    (400, 'n')
"""

from __future__ import annotations

import msgspec


class ErrorInfo(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The facts about a failure that a client may know.

    ``status`` is the HTTP status of the response, ``stage`` the failed stage (if any), ``retry_after`` a time in
    seconds.
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
    """Return the error for a client's mistake (400), with the name of the field in ``param``."""
    return OmniError(ErrorInfo(message=message, type="invalid_request_error", code=code, param=param, status=400))


def not_found(message: str, param: str | None = None, code: str | None = None) -> OmniError:
    """Return the error for an unknown model, voice, route or id (404)."""
    return OmniError(ErrorInfo(message=message, type="invalid_request_error", code=code, param=param, status=404))


def too_large(message: str, param: str | None = None) -> OmniError:
    """Return the error for a body or a media file over its limit (413)."""
    return OmniError(
        ErrorInfo(message=message, type="invalid_request_error", code="too_large", param=param, status=413)
    )


def deadline_exceeded(message: str = "The request did not finish before its deadline.") -> OmniError:
    """Return the error for a request whose deadline passed (408)."""
    return OmniError(ErrorInfo(message=message, type="timeout_error", code="deadline_exceeded", status=408))


def slow_client() -> OmniError:
    """Return the error for a client that does not read its stream while too much output waits."""
    return OmniError(
        ErrorInfo(message="The client does not read its stream.", type="timeout_error", code="slow_client")
    )


def overloaded(message: str, retry_after: float = 1.0) -> OmniError:
    """Return the error for a reached bound (429): the client should come back after ``retry_after`` seconds."""
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
    """Return the error for a stage without a live replica (503)."""
    return _unavailable(stage, f"Stage '{stage}' has no live replica.", "stage_unavailable", retry_after)


def stage_died(stage: str, retry_after: float = 1.0) -> OmniError:
    """Return the error for a request whose worker ended by itself (503)."""
    return _unavailable(
        stage, f"The worker of stage '{stage}' ended while it held this request.", "stage_died", retry_after
    )


def stage_replaced(stage: str, retry_after: float = 1.0) -> OmniError:
    """Return the error for a request whose worker was ended (503), by command or because another request was stuck
    there: the request itself need not be the cause."""
    return _unavailable(
        stage, f"The worker of stage '{stage}' was replaced while it held this request.", "stage_replaced", retry_after
    )


def poison(stage: str) -> OmniError:
    """Return the error for a request that ends every worker it enters (500) and is not tried again."""
    return OmniError(
        ErrorInfo(
            message=f"The worker of stage '{stage}' ended on this request, also when it held no other request.",
            code="poison",
            status=500,
            stage=stage,
        )
    )


def not_resumable(stage: str, retry_after: float = 1.0) -> OmniError:
    """Return the error for a request whose worker ended and whose output cannot be continued (503). The client may send
    the request anew."""
    return _unavailable(
        stage,
        f"The worker of stage '{stage}' ended, and this request's output cannot be continued.",
        "not_resumable",
        retry_after,
    )


def link_lost(stage: str, retry_after: float = 1.0) -> OmniError:
    """Return the error for a broken connection between two stages' workers before the input was complete (503)."""
    return _unavailable(stage, f"Stage '{stage}' lost the connection that brought its input.", "link_lost", retry_after)


def stage_failed(stage: str, message: str = "The stage failed on this request.") -> OmniError:
    """Return the error for an unexpected exception inside a stage (500). The message names the stage and never holds a
    traceback."""
    return OmniError(ErrorInfo(message=f"Stage '{stage}': {message}", code="stage_failed", status=500, stage=stage))


def out_of_memory(stage: str) -> OmniError:
    """Return the error for a request that needs more memory than the stage has, even alone (503)."""
    return OmniError(
        ErrorInfo(
            message=f"Stage '{stage}': not enough memory for this request.",
            type="unavailable_error",
            code="out_of_memory",
            status=503,
            stage=stage,
        )
    )
