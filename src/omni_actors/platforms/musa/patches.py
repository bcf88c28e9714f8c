"""Changes of torch_musa before a worker computes. ``doctor`` lists the changes; a runtime applies the changes on
opening."""

from __future__ import annotations

from omni_actors.platforms.runtime import Patch
from omni_actors.platforms.runtime.torch_module import has


def _torchada() -> None:
    if has("torchada"):
        import torchada  # noqa: F401  (importing it is what it is for)


TORCHADA = Patch(
    "musa-torchada",
    "libraries that name torch.cuda (Triton kernels, some models' own code) reach the MUSA device, where torchada is "
    "installed",
    _torchada,
)

PATCHES = (TORCHADA,)
