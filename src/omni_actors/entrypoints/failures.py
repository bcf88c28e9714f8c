"""Replies to requests whose handler has failed, in OpenAI's format of errors."""

from __future__ import annotations

import logging

from werkzeug.exceptions import HTTPException

from omni_actors.entrypoints.http import Reply, RequestContext
from omni_actors.entrypoints.openai.errors import error_body, error_headers, http_error, internal_error
from omni_actors.protocol.errors import ErrorInfo, OmniError

log = logging.getLogger("omni_actors.http")


def error_reply(error: Exception, context: RequestContext, method: str, path: str) -> Reply:
    """Return the reply to any failure, in OpenAI's JSON. An unexpected one is logged with its traceback, and the client
    gets the request id."""
    info: ErrorInfo
    headers: list[tuple[str, str]] = []
    if isinstance(error, OmniError):
        info = error.info
    elif isinstance(error, HTTPException):
        headers = [(name, value) for name, value in error.get_headers() if name.lower() == "allow"]
        info = _http_failure(error, method, path)
    else:
        log.error("unexpected failure of %s %r", method, path, exc_info=error)
        info = internal_error(context.id)
    return Reply(error_body(info), [*error_headers(info), *headers], info.status)


def _http_failure(error: HTTPException, method: str, path: str) -> ErrorInfo:
    status = error.code or 500
    if status == 404:
        return http_error(404, f"No such route: {method} {path}.", code="not_found")
    if status == 405:
        return http_error(405, f"{path} does not take {method}.", code="method_not_allowed")
    return http_error(status, error.description or error.name)
