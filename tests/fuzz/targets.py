"""All targets, by name."""

from __future__ import annotations

from tests.fuzz import doors, downloads, frames, inputs, media, settings, workers

_ROOMS = (frames, workers, inputs, downloads, media, settings)

TARGETS = {it.name: it for it in (*doors.TARGETS, *(it for room in _ROOMS for it in room.TARGETS))}
