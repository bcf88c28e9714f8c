"""For schemathesis: requests name the model and a voice that are served, since made-up ones are refused before anything
else is looked at."""

from __future__ import annotations

import os
from typing import Any

import schemathesis

_SERVED = {"model": os.environ.get("SERVED_MODEL", "stub-voice"), "voice": "tone"}


@schemathesis.hook
def map_body(context: Any, body: Any) -> Any:
    if isinstance(body, dict):
        body.update((name, served) for name, served in _SERVED.items() if isinstance(body.get(name), str))
    return body
