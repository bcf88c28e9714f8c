"""What nobody could say: found out before a request is made, by whichever way it comes."""

from __future__ import annotations

import re

from omni_actors.protocol.errors import invalid_request

_SAYABLE = re.compile(r"[^\W_]")
"""A letter or a digit of any script."""


def check_tts_input(text: object, param: str = "input", most: float | None = None) -> None:
    """Raises 400 for what is no text, for blank text, punctuation or pictures alone and control characters, and for
    more than ``most`` characters."""
    if not isinstance(text, str):
        raise invalid_request(f"'{param}' must be a text.", param, "invalid_value")
    if "\x00" in text:
        raise invalid_request(f"'{param}' has a NUL character.", param, "invalid_value")
    if most is not None and len(text) > most:
        message = f"'{param}' has {len(text)} characters; the most is {most:.0f}."
        raise invalid_request(message, param, "invalid_value")
    if _SAYABLE.search(text) is None:
        message = f"'{param}' has nothing to say: it has no letter and no digit."
        raise invalid_request(message, param, "invalid_value")
