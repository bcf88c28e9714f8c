"""Rotary position embedding by tables: for plain positions, and for the three axes of M-RoPE.

M-RoPE (Qwen2-VL, https://arxiv.org/abs/2409.12191) gives a token a temporal, a vertical and a horizontal position, and
each pair of channels one of the three. For text all three are equal, and the result is plain rotary embedding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


class Rotary:
    """Rotary tables; ``at`` returns cosines and sines [tokens, 1, head_dim].

    Positions are int64 [tokens], or float32 [tokens] or [3, tokens] for fractional positions or positions with axes.
    The sign of the rotation's first half is in the sines: ``x * cos + x.roll(head_dim // 2) * sin``.
    """

    def __init__(
        self, module: Any, positions: int, dtype: torch.dtype, device: torch.device, axes: torch.Tensor | None = None
    ) -> None:
        """Make tables for whole positions below ``positions``, from a transformers rotary module. ``axes`` int64
        [head_dim] is the axis of each channel."""
        module = module.to(device)
        places = torch.arange(positions, device=device)
        shape = (1, -1) if axes is None else (3, 1, -1)
        cos, sin = module(torch.empty(1, dtype=dtype, device=device), places.expand(*shape))
        while cos.dim() > 2:  # all axes and the batch are the same
            cos, sin = cos[0], sin[0]
        self._cos, self._sin = cos.contiguous(), _signed(sin)
        self._dtype = dtype
        self._axes = None if axes is None else axes.to(device)
        self._frequencies = torch.cat((module.inv_freq, module.inv_freq)).to(device, torch.float32)
        self._scaling = float(getattr(module, "attention_scaling", 1.0))

    def at(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if not positions.is_floating_point():
            return (
                self._cos.index_select(0, positions).unsqueeze(1),
                self._sin.index_select(0, positions).unsqueeze(1),
            )
        if positions.dim() == 2:
            assert self._axes is not None
            positions = positions.index_select(0, self._axes).t()
        else:
            positions = positions.unsqueeze(1)
        angles = positions * self._frequencies
        cos, sin = angles.cos() * self._scaling, angles.sin() * self._scaling
        return cos.to(self._dtype).unsqueeze(1), _signed(sin.to(self._dtype)).unsqueeze(1)


def _signed(sin: torch.Tensor) -> torch.Tensor:
    sin = sin.clone()
    sin[..., : sin.shape[-1] // 2].neg_()
    return sin


def interleaved_axes(sections: Sequence[int], head_dim: int) -> torch.Tensor:
    """Return Qwen3's order: channel pairs take the axes in turn, as long as the vertical and horizontal sections
    last."""
    axes = torch.zeros(head_dim // 2, dtype=torch.int64)
    for axis in (1, 2):
        axes[axis : sections[axis] * 3 : 3] = axis
    return torch.cat((axes, axes))


def sectioned_axes(sections: Sequence[int]) -> torch.Tensor:
    """Return Qwen2's order: the first section of channel pairs is temporal, the next vertical, the last horizontal."""
    axes = torch.repeat_interleave(torch.arange(3), torch.tensor(sections))
    return torch.cat((axes, axes))
