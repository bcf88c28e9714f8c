"""The former address of :mod:`omni_actors.platforms.runtime.kernel_validation`."""

from omni_actors.moved import moved_names

__getattr__ = moved_names(
    __name__,
    {
        "Candidates": "omni_actors.platforms.runtime.kernel_validation:Candidates",
        "TOLERANCE": "omni_actors.platforms.runtime.kernel_validation:TOLERANCE",
        "decode": "omni_actors.platforms.runtime.kernel_validation:choose_decode",
        "decode_error": "omni_actors.platforms.runtime.kernel_validation:decode_error",
        "prompt": "omni_actors.platforms.runtime.kernel_validation:choose_prompt",
        "prompt_error": "omni_actors.platforms.runtime.kernel_validation:prompt_error",
    },
)
