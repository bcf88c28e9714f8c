"""All targets, by name."""

from __future__ import annotations

from tests.fuzz import doors, frames, inputs, media, settings, workers

_ALL = (
    doors.HTTP,
    doors.WEBSOCKET,
    *frames.TARGETS,
    *inputs.TARGETS,
    *media.TARGETS,
    *settings.TARGETS,
    *workers.TARGETS,
)

TARGETS = {target.name: target for target in _ALL}
