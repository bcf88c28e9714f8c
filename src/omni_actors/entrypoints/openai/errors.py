"""Errors in OpenAI's format."""

from __future__ import annotations

import math

import msgspec

from omni_actors.protocol.errors import ErrorInfo

JSON = "application/json"

MESSAGE_CHARS = 2000
"""Most characters of a message that are sent: a message that quotes a body could be as long as the body."""

_TYPES = {401: "authentication_error", 403: "permission_error"}
"""Types of errors with a status of their own; other errors of clients are invalid requests, from 500
on the server's."""


def error_body(info: ErrorInfo) -> bytes:
    """Return ``{"error": {"message", "type", "param", "code"}}``, always with these four keys. Message and param are
    shortened to :data:`MESSAGE_CHARS` in the middle, because a message ends with the possible values."""
    message, param = _shortened(info.message), info.param and _shortened(info.param)
    return msgspec.json.encode({"error": {"message": message, "type": info.type, "param": param, "code": info.code}})


def _shortened(text: str) -> str:
    if len(text) <= MESSAGE_CHARS:
        return text
    half = MESSAGE_CHARS // 2
    return f"{text[: half - 1]}…{text[-half:]}"


def error_headers(info: ErrorInfo) -> list[tuple[str, str]]:
    headers = [("content-type", JSON)]
    if info.retry_after is not None:
        headers.append(("retry-after", str(max(1, math.ceil(info.retry_after)))))
    if info.status == 401:
        headers.append(("www-authenticate", "Bearer"))
    return headers


def http_error(status: int, message: str, *, code: str | None = None, param: str | None = None) -> ErrorInfo:
    """Return an error of HTTP itself: unknown route, method, credentials."""
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return ErrorInfo(message=message, type=kind, code=code, param=param, status=status)


def http_error_body(status: int, message: str) -> bytes:
    """Return the body of an error that the HTTP server answers by itself, in OpenAI's format."""
    return error_body(http_error(status, message))


def internal_error(request_id: str) -> ErrorInfo:
    """Return the error for an unexpected exception: it names the request id under which the log has the exception."""
    return ErrorInfo(
        message=f"Internal error. The server's log has it under request id {request_id}.", code="internal_error"
    )
