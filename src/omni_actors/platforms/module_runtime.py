"""The former address of :mod:`omni_actors.platforms.runtime.torch_module`."""

from omni_actors.moved import moved_names

__getattr__ = moved_names(
    __name__,
    {
        "ModuleGraphs": "omni_actors.platforms.runtime.torch_module:ModuleGraphs",
        "ModuleRuntime": "omni_actors.platforms.runtime.torch_module:ModuleRuntime",
        "SIZES": "omni_actors.platforms.runtime.torch_module:SIZES",
        "WARM_UP": "omni_actors.platforms.runtime.torch_module:WARM_UP",
        "bring": "omni_actors.platforms.runtime.torch_module:bring",
        "has": "omni_actors.platforms.runtime.torch_module:has",
    },
)
