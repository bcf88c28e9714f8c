"""What an AMD GPU executes: Triton's attention over the paged cache, where Triton and the device allow it, and it
agrees with plain torch.

Prompts stay with scaled_dot_product_attention, which is Triton's too in a torch built for ROCm (AOTriton). Rows of
experts are multiplied in groups where the device computes in bfloat16 and torch has that for it (gfx942, gfx950).
"""

from __future__ import annotations

import functools

import torch

from omni_actors.platforms.runtime import Capability, kernel_validation
from omni_actors.platforms.runtime import kernels as plain
from omni_actors.platforms.runtime.kernels import CacheLayout, Kernels, PagedDecode

_MATRIX = ("gfx90a", "gfx940", "gfx941", "gfx942", "gfx950", "gfx11", "gfx12")
"""Architectures with matrix instructions that Triton compiles its products to."""

_GROUPED = ("gfx942", "gfx950")
"""Architectures that torch's grouped products are built for."""


def kernels(capability: Capability, device: torch.device, triton: bool) -> Kernels:
    """This device's choice. ``triton`` says whether the package is there."""
    matrix = capability.name.startswith(_MATRIX)

    @functools.cache
    def paged_decode(layout: CacheLayout) -> PagedDecode | None:
        if not triton or not matrix or layout.block_size < 16 or layout.block_size & (layout.block_size - 1):
            return None
        return kernel_validation.choose_decode(layout, device, [("Triton", _triton)])

    return Kernels(
        experts=plain.experts_in_groups if capability.name in _GROUPED else plain.experts,
        paged_decode=paged_decode,
    )


def _triton() -> PagedDecode:
    from omni_actors.platforms.runtime.triton_attention import paged_decode

    return paged_decode
