"""Errors that the server answers by itself, and the format of their bodies."""

from __future__ import annotations

import json
from collections.abc import Callable

ErrorBody = Callable[[int, str], bytes]
"""A function from a status and a message to the JSON body of an error that the server answers by itself."""

JSON_HEADER = (b"content-type", b"application/json")


class BadRequest(Exception):
    """A request that is not HTTP/1.1 or not acceptable: the server answers ``status`` and closes the connection."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


def default_error_body(status: int, message: str) -> bytes:
    """Return ``{"error": {"message": …}}``: the body of an error where no other format was given to the server."""
    return json.dumps({"error": {"message": message}}, separators=(",", ":")).encode()
