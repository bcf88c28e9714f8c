"""Moved to ``oneshot.engine`` and ``oneshot.adapter``."""

from omni_actors.moved import moved_names

__getattr__ = moved_names(
    __name__,
    {
        "GenerationEngine": "omni_actors.worker.engines.oneshot:GenerationEngine",
        "GenerationAdapter": "omni_actors.worker.engines.oneshot.adapter:GenerationAdapter",
    },
)
