"""The device's kernels.

A vendor has kernels of its own. These kernels are the processor's, so that results are the same bit for bit, and count
their calls, so that a test can see that these kernels run and not those of another platform.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import torch

from omni_actors.platforms.cpu.kernels import KERNELS
from omni_actors.platforms.runtime.kernels import Kernels, Linear
from omni_sim.memory import SimMemory


def sim_kernels(memory: SimMemory, calls: Counter[str]) -> Kernels:
    """Return kernels that reserve the device's memory for caches, and for weights in a layout of the kernel's own."""

    def linear(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
        memory.reserve(weight.nbytes)  # until the process ends, like the model
        product = KERNELS.linear(weight, bias)

        def apply(x: torch.Tensor) -> torch.Tensor:
            calls["linear"] += 1
            return product(x)

        return apply

    def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        calls["zeros"] += 1
        cache = KERNELS.zeros(shape, dtype, device)
        memory.account(cache)
        return cache

    def experts(rows: torch.Tensor, counts: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
        calls["experts"] += 1
        return KERNELS.experts(rows, counts, gate_up, down)

    return replace(KERNELS, linear=linear, zeros=zeros, experts=experts)
