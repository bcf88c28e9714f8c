"""All targets, by name."""

from __future__ import annotations

from tests.fuzz import doors, downloads, frames, inputs, media, settings, workers

_MODULES = (frames, workers, inputs, downloads, media, settings)

TARGETS = {it.name: it for it in (*doors.TARGETS, *(it for module in _MODULES for it in module.TARGETS))}
