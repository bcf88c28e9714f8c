"""Moved to ``autoregressive.options``."""

from omni_actors.moved import moved_names

__getattr__ = moved_names(
    __name__,
    {
        "OPTIONS": "omni_actors.worker.engines.autoregressive.options:OPTIONS",
        "EngineOptions": "omni_actors.worker.engines.autoregressive.options:EngineOptions",
    },
)
