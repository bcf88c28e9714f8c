"""Kernels of an NVIDIA GPU, by compute capability, the stage's dtype and the installed packages."""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch

from omni_actors.platforms.cuda import attention
from omni_actors.platforms.runtime import kernel_validation
from omni_actors.platforms.runtime import kernels as plain
from omni_actors.platforms.runtime.kernels import CacheLayout, Kernels, PagedDecode, PromptAttention

LEAST_TRITON_BLOCK = 16


def kernels(capability: tuple[int, int], device: torch.device, wanted: str, has: Callable[[str], bool]) -> Kernels:
    """This device's choice. ``wanted`` is the option ``attention``; ``has`` says whether a package is installed."""
    flash = wanted in ("auto", "flash")
    package = flash and has("flash_attn")

    def block_size(dtype: torch.dtype) -> int:
        pages = (package or wanted == "flash") and attention.flashes(capability, dtype, attention.FLASH_HEAD)
        return attention.FLASH_BLOCK if pages else 16

    @functools.cache
    def paged_decode(layout: CacheLayout) -> PagedDecode | None:
        candidates: list[tuple[str, Callable[[], PagedDecode]]] = []
        if flash and _pages(capability, layout):
            if package:
                candidates.append(("flash-attn", lambda: attention.decode_by_package(_flash_attn())))
            if (varlen := attention.torch_reads_tables()) is not None:
                candidates.append(("torch's FlashAttention", lambda: attention.decode_by_torch(varlen)))
        if wanted == "triton" and has("triton") and capability >= (8, 0) and _power(layout.block_size):
            candidates.append(("Triton", _triton))
        return kernel_validation.choose_decode(layout, device, candidates)

    @functools.cache
    def prompt_attention(layout: CacheLayout) -> PromptAttention | None:
        candidates: list[tuple[str, Callable[[], PromptAttention]]] = []
        order = attention.backends(capability, layout.dtype)
        if package and attention.flashes(capability, layout.dtype, layout.head_dim):
            candidates.append(("flash-attn", lambda: attention.prompt_by_package(_flash_attn())))
        if order:
            candidates.append((", ".join(it.name for it in order), lambda: attention.prompt_by_backends(order)))
        return kernel_validation.choose_prompt(layout, device, candidates)

    return Kernels(
        # Grouped products are one kernel from compute capability 9.0 on; below, torch waits for the counts itself.
        experts=plain.experts_in_groups if capability >= (9, 0) else plain.experts,
        block_size=block_size,
        paged_decode=paged_decode,
        prompt_attention=prompt_attention,
    )


def _pages(capability: tuple[int, int], layout: CacheLayout) -> bool:
    """Return whether FlashAttention reads the cache in place."""
    fits = attention.flashes(capability, layout.dtype, layout.head_dim)
    return fits and layout.block_size % attention.FLASH_BLOCK == 0


def _power(number: int) -> bool:
    return number >= LEAST_TRITON_BLOCK and number & (number - 1) == 0


def _flash_attn() -> Any:
    return import_module("flash_attn")


def _triton() -> PagedDecode:
    from omni_actors.platforms.runtime.triton_attention import paged_decode

    return paged_decode
