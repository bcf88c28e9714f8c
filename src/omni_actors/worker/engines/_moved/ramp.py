"""Moved to ``oneshot.ramp``."""

from omni_actors.moved import moved_names

__getattr__ = moved_names(
    __name__,
    {
        "SHARE": "omni_actors.worker.engines.oneshot.ramp:SHARE",
        "Ramp": "omni_actors.worker.engines.oneshot.ramp:Ramp",
    },
)
