"""The former address of :mod:`omni_actors.platforms.runtime.kernels`."""

from omni_actors.moved import moved_names

__getattr__ = moved_names(
    __name__,
    {
        "CacheLayout": "omni_actors.platforms.runtime.kernels:CacheLayout",
        "Kernels": "omni_actors.platforms.runtime.kernels:Kernels",
        "Linear": "omni_actors.platforms.runtime.kernels:Linear",
        "PagedDecode": "omni_actors.platforms.runtime.kernels:PagedDecode",
        "PromptAttention": "omni_actors.platforms.runtime.kernels:PromptAttention",
        "experts": "omni_actors.platforms.runtime.kernels:experts",
        "experts_in_groups": "omni_actors.platforms.runtime.kernels:experts_in_groups",
        "greatest": "omni_actors.platforms.runtime.kernels:greatest",
        "grouped_experts": "omni_actors.platforms.runtime.kernels:grouped_experts",
        "linear": "omni_actors.platforms.runtime.kernels:linear",
        "paged_decode": "omni_actors.platforms.runtime.kernels:paged_decode",
        "prompt_attention": "omni_actors.platforms.runtime.kernels:prompt_attention",
        "sine_": "omni_actors.platforms.runtime.kernels:sine_",
        "zeros": "omni_actors.platforms.runtime.kernels:zeros",
    },
)
