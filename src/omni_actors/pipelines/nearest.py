"""The end of a message about an unknown name."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def closest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most like another name, or ``None`` if none is like it.

    >>> closest("repliccas", ["devices", "replicas"])
    'replicas'
    """
    found = get_close_matches(name, list(known), n=1, cutoff=0.6)
    return found[0] if found else None


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown name: the nearest known name as a question, or all known names.

    Args:
        name: The unknown name.
        known: The names that would have been right.

    Example:
        >>> nearest("chatt", ["chat", "speech"])
        "did you mean 'chat'?"
        >>> nearest("x", ["speech", "chat"])
        'known: chat, speech'
    """
    names = sorted(known)
    if near := closest(name, names):
        return f"did you mean '{near}'?"
    return f"known: {', '.join(names)}" if names else "none is known"
