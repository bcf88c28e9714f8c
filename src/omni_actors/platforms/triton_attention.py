"""The former address of :mod:`omni_actors.platforms.runtime.triton_attention`."""

from omni_actors.moved import moved_names

__getattr__ = moved_names(
    __name__,
    {
        "LEAST": "omni_actors.platforms.runtime.triton_attention:LEAST",
        "paged_decode": "omni_actors.platforms.runtime.triton_attention:paged_decode",
    },
)
