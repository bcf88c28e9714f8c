"""Checks of texts that are to be spoken, before a request is built."""

from __future__ import annotations

import re

from omni_actors.protocol.errors import invalid_request

_SAYABLE = re.compile(r"[^\W_]")
"""A letter or a digit of any script."""


def check_tts_input(text: object, param: str = "input", most: float | None = None) -> None:
    """Raise 400 for a text that cannot be spoken: not a text, no letter or digit in it, a NUL, or more than ``most``
    characters."""
    if not isinstance(text, str):
        raise invalid_request(f"'{param}' must be a text.", param, "invalid_value")
    if "\x00" in text:
        raise invalid_request(f"'{param}' contains a NUL character.", param, "invalid_value")
    if most is not None and len(text) > most:
        message = f"'{param}' has {len(text)} characters; at most {most:.0f} are allowed."
        raise invalid_request(message, param, "invalid_value")
    if _SAYABLE.search(text) is None:
        message = f"'{param}' cannot be spoken: it has no letter and no digit."
        raise invalid_request(message, param, "invalid_value")
