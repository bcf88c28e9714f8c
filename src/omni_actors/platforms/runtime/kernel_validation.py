"""The validation of attention kernels from vendors' packages and compilers.

Each kernel is tried once, before it is chosen, on a few tokens against the same attention in plain torch. A kernel that
raises or disagrees is left out, with a log line. This module imports torch, so only workers import it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import torch

from omni_actors.platforms.runtime import kernels as plain
from omni_actors.platforms.runtime.kernels import CacheLayout, PagedDecode, PromptAttention

log = logging.getLogger(__name__)

TOLERANCE = {torch.bfloat16: 4e-2, torch.float16: 1e-2, torch.float32: 1e-3}
"""Largest difference from plain float32 on standard normal numbers, by dtype. A wrong mask differs by tenths."""

A = TypeVar("A", PagedDecode, PromptAttention)

Candidates = Sequence[tuple[str, Callable[[], A]]]
"""Kernels to try: a name, and a function that imports and makes the kernel."""


def choose_decode(layout: CacheLayout, device: torch.device, candidates: Candidates[PagedDecode]) -> PagedDecode | None:
    """Return the first candidate that computes one new token per sequence correctly; ``None`` if none does."""
    return _first_that_agrees("decode", candidates, partial(decode_error, layout, device))


def choose_prompt(
    layout: CacheLayout, device: torch.device, candidates: Candidates[PromptAttention]
) -> PromptAttention | None:
    """Return the first candidate that computes prompts correctly; ``None`` if none does."""
    return _first_that_agrees("prompt", candidates, partial(prompt_error, layout, device))


def decode_error(layout: CacheLayout, device: torch.device, attend: PagedDecode) -> float:
    """Return the error of ``attend`` against plain float32, in tolerances. The inputs are two sequences, one of a block
    and a bit and one of a single token, with and without a window."""
    size, heads = layout.block_size, 2 * layout.kv_heads
    draw = _draws(device, layout.dtype)
    pool = draw(4, 2 * layout.kv_heads, size, layout.head_dim)
    keys, values = pool[:, : layout.kv_heads], pool[:, layout.kv_heads :]
    query = draw(2, heads, layout.head_dim)
    table = torch.tensor([[2, 0], [1, 3]], dtype=torch.int32, device=device)
    lengths = torch.tensor([size + 3, 1], dtype=torch.int32, device=device)
    worst = 0.0
    for window in (None, 5):
        given = (table, lengths, layout.head_dim**-0.5, window, None)
        expected = plain.paged_decode(query.float(), keys.float(), values.float(), *given)
        worst = max(worst, _off(attend(query, keys, values, *given), expected, layout.dtype))
    return worst


def prompt_error(layout: CacheLayout, device: torch.device, attend: PromptAttention) -> float:
    """Return the error of ``attend`` against plain float32, in tolerances. The inputs are a whole prompt and the end of
    a longer one, with and without a window."""
    draw = _draws(device, layout.dtype)
    both = draw(2 * layout.kv_heads, 19, layout.head_dim)
    keys, values = both[: layout.kv_heads], both[layout.kv_heads :]
    query = draw(19, 2 * layout.kv_heads, layout.head_dim)
    scale, worst = layout.head_dim**-0.5, 0.0
    for count in (19, 7):
        for window in (None, 5):
            rows = query[-count:]
            expected = plain.prompt_attention(rows.float(), keys.float(), values.float(), scale, window)
            worst = max(worst, _off(attend(rows, keys, values, scale, window), expected, layout.dtype))
    return worst


def _first_that_agrees(kind: str, candidates: Candidates[A], check: Callable[[A], float]) -> A | None:
    """Return the first candidate whose largest error, by ``check``, is within tolerance. The log says which candidate
    that is, and why others are not used."""
    for name, make in candidates:
        try:
            made = make()
            error = check(made)
        except Exception as failure:
            log.warning("%s attention '%s' is not used: %s: %s", kind, name, type(failure).__name__, failure)
            continue
        if error <= 1.0:
            log.info("%s attention: %s", kind, name)
            return made
        log.warning("%s attention '%s' is not used: its error is %.1f times what rounding explains", kind, name, error)
    return None


def _draws(device: torch.device, dtype: torch.dtype) -> Callable[..., torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return lambda *shape: torch.randn(*shape, generator=generator).to(device, dtype)


def _off(found: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> float:
    worst = float((found.float() - expected).abs().max())
    return math.inf if math.isnan(worst) else worst / TOLERANCE[dtype]
