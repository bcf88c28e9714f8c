"""The device's kernels. A vendor's are its own; these are the processor's, so that results are the same bit for bit,
with a count of what runs by them: a test can see that they execute, and not the ones of another platform."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import torch

from omni_actors.platforms.cpu.kernels import KERNELS
from omni_actors.platforms.runtime.kernels import Kernels, Linear
from omni_sim.memory import SimMemory


def sim_kernels(memory: SimMemory, calls: Counter[str]) -> Kernels:
    """Weights, whose layout is the kernel's own, and caches take the device's memory."""

    def linear(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
        memory.reserve(weight.nbytes)  # for as long as the process lives, as a model does
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
