"""The former address of :mod:`omni_actors.platforms.runtime.modules`."""

from omni_actors.moved import moved_names

__getattr__ = moved_names(
    __name__,
    {
        "modules_of": "omni_actors.platforms.runtime.modules:modules_of",
    },
)
