"""What installed distributions offer to this one: their entry points, whatever else is installed beside them."""

from __future__ import annotations

import logging
from importlib.metadata import Distribution, EntryPoint, distributions, entry_points

from packaging.utils import canonicalize_name

log = logging.getLogger(__name__)

FILE = "entry_points.txt"

OWN = "omni-actors"
"""The distribution that this package is in: what it announces itself is known without entry points."""


def installed(group: str) -> tuple[EntryPoint, ...]:
    """The entry points of a group. A distribution whose list of them cannot be read offers none; it is a warning if the
    list speaks of the group, and nobody's business here if it does not."""
    try:
        return tuple(entry_points(group=group))
    except Exception as error:  # somebody's: the library reads all lists, and stops at the first that it cannot
        log.debug("reading each distribution's entry points by itself: %r", error)
    found: dict[str, tuple[EntryPoint, ...]] = {}
    for distribution in distributions():
        name = _name(distribution)
        if name not in found:  # the first on the path is the one that is imported
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
    """As it is installed; of one that does not say, something that no other is called."""
    try:
        name = distribution.metadata["Name"]
    except Exception:  # its metadata is no better than its list
        name = None
    return canonicalize_name(name) if name else f"a distribution without a name ({distribution!r})"
