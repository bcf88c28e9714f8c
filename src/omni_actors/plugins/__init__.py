"""Entry points of installed distributions."""

from __future__ import annotations

import logging
from importlib.metadata import Distribution, EntryPoint, distributions, entry_points

from packaging.utils import canonicalize_name

log = logging.getLogger(__name__)

FILE = "entry_points.txt"

OWN = "omni-actors"
"""The distribution of this package, whose own stages and platforms are known without entry points."""


def installed(group: str) -> tuple[EntryPoint, ...]:
    """Return the entry points of a group.

    A distribution with an unreadable list of entry points offers none; a warning is logged if the list mentions the
    group.
    """
    try:
        return tuple(entry_points(group=group))
    except Exception as error:  # the library reads all lists and stops at the first unreadable one
        log.debug("entry points are read one distribution at a time: %r", error)
    found: dict[str, tuple[EntryPoint, ...]] = {}
    for distribution in distributions():
        name = _name(distribution)
        if name not in found:  # the first one on the path is imported
            found[name] = _offered(distribution, name, group)
    return tuple(point for points in found.values() for point in points)


def _offered(distribution: Distribution, name: str, group: str) -> tuple[EntryPoint, ...]:
    try:
        return tuple(distribution.entry_points.select(group=group))
    except Exception as error:
        if f"[{group}]" in _text(distribution):
            log.warning("%s is broken and ignored: its %s cannot be read: %r", name, FILE, error)
        return ()


def _text(distribution: Distribution) -> str:
    try:
        return distribution.read_text(FILE) or ""
    except UnicodeDecodeError as error:
        return error.object.decode(errors="replace")


def _name(distribution: Distribution) -> str:
    """Return the installed name of a distribution; a unique text for a distribution without a name."""
    try:
        name = distribution.metadata["Name"]
    except Exception:  # the metadata is as broken as the list
        name = None
    return canonicalize_name(name) if name else f"a distribution without a name ({distribution!r})"
