"""Server-sent events as a plain client reads them."""

from __future__ import annotations

import json
from typing import Any


def events_of(text: str) -> tuple[list[dict[str, Any]], list[str]]:
    """The data of the events, and the comments."""
    blocks = [block for block in text.split("\n\n") if block]
    comments = [block[2:] for block in blocks if block.startswith(": ")]
    data = [line[6:] for block in blocks for line in block.split("\n") if line.startswith("data: ")]
    return [json.loads(it) for it in data if it != "[DONE]"], comments
