"""Kernels of an AMD GPU: Triton's attention over the paged cache, if Triton and the device allow it and the results
agree with plain torch.

Prompts use scaled_dot_product_attention, also Triton's in a torch built for ROCm (AOTriton). Rows of experts are
multiplied in groups if the device computes in bfloat16 and torch has grouped products for the device (gfx942, gfx950).
"""

from __future__ import annotations

import functools

import torch

from omni_actors.platforms.runtime import Capability, kernel_validation
from omni_actors.platforms.runtime import kernels as plain
from omni_actors.platforms.runtime.kernels import CacheLayout, Kernels, PagedDecode

_MATRIX = ("gfx90a", "gfx940", "gfx941", "gfx942", "gfx950", "gfx11", "gfx12")
"""Architectures whose matrix instructions Triton's products are compiled to."""

_GROUPED = ("gfx942", "gfx950")
"""Architectures for which torch's grouped products are built."""


def kernels(capability: Capability, device: torch.device, triton: bool) -> Kernels:
    """Choose the device's kernels. ``triton`` says whether the package is installed."""
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
