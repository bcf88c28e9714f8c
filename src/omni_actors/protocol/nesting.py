"""The limit of nesting in a JSON value, and the name of the field of a body that is nested too deeply."""

from __future__ import annotations

import re
from typing import Any

from omni_actors.protocol.errors import OmniError, invalid_request

MOST = 100
"""Most levels of objects and lists in a value that is passed on unread."""

TOKENS = 50_000
"""Most strings and brackets of a body that are searched for the field that is nested too deeply."""

_TOKEN = re.compile(rb'"((?:[^"\\]|\\.)*+)"|[\[\]{}]')


def check_nesting(value: Any, param: str) -> None:
    """Raise 400 with ``param`` for a value of more than :data:`MOST` levels.

    >>> check_nesting({"a": [1, {"b": 2}]}, "metadata")
    """
    level = [value]
    for _ in range(MOST + 1):
        level = [
            inner
            for it in level
            if isinstance(it, dict | list)
            for inner in (it.values() if isinstance(it, dict) else it)
        ]
        if not level:
            return
    raise invalid_request(f"'{param}' is nested more than {MOST} levels deep.", param)


def too_deep(body: bytes) -> OmniError:
    """Return the error for a JSON object that is nested too deeply to be parsed. The error names the field, unless the
    field comes late in the body."""
    field = _deep_field(body)
    if field is None:
        return invalid_request("The body is nested too deeply.", code="invalid_json")
    return invalid_request(f"'{field}' is nested too deeply.", field, code="invalid_json")


def _deep_field(body: bytes) -> str | None:
    depth, name = 0, b""
    for number, found in enumerate(_TOKEN.finditer(body)):
        token = found[0]
        if token in (b"{", b"["):
            depth += 1
            if depth > MOST:
                return name.decode(errors="replace")[:MOST] or None
        elif token in (b"}", b"]"):
            depth -= 1
        elif depth == 1:
            name = found[1]
        if number == TOKENS:
            break
    return None
