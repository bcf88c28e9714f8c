"""Kernels of the processor, each kept because measurements showed it to be faster."""

from __future__ import annotations

import math

import numpy as np
import torch

from omni_actors.platforms.runtime import kernels
from omni_actors.platforms.runtime.kernels import Kernels, Linear

_PACK_FROM = 1 << 16
"""Least number of elements of a weight that is reordered. A smaller weight stays in the processor's cache anyway, and a
call of the packed product costs ten microseconds more. Measured at 48 x 144: 1.7 µs against 11 for a row, 4 against 20
for sixteen; at 256 x 512 sixteen rows take half the time packed."""

_PACK_ROWS = 256
"""Rows for which the layout is chosen. Measured: a layout for this number is as fast as any from 1 to 256 rows; a
layout for few rows is several times slower with other numbers."""

_FUSED_LIMIT = 512
"""Keys up to which a group of decodes in a 16-bit dtype runs as one fused call. Measured: below this number the fixed
cost of the products is more than twice that of the fused call; far above it the products are twice as fast, and in
float32 they always are."""

_NARROW = 64
"""Channels up to which a dilated convolution is done as one product over its unfolded input. Measured for 2 to 16
channels: 2 to 4 times as fast as torch's own for one row, 1.3 to 1.8 times for four."""

_DRAW_ROWS = 8
"""Rows to draw from at once: as few as stay in the processor's cache."""


def linear(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
    """Reorder a large weight once, so that a step reads the weight at memory speed (measured against the original
    layout, per step of a 135M model: 2 to 3 times in float32, 1.5 to 2 times in bfloat16). The arithmetic of the dtype
    does not change."""
    if weight.numel() < _PACK_FROM or not torch.backends.mkldnn.is_available():
        return kernels.linear(weight, bias)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _PACK_ROWS)
    product = torch.ops.mkldnn._linear_pointwise.default

    def apply(x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = product(x, packed, bias, "none", [], "")
        return result

    return apply


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return zeros that take memory only when written (torch writes its own zeros at once)."""
    return torch.from_numpy(np.zeros(math.prod(shape) * dtype.itemsize, np.uint8)).view(dtype).view(shape)


def greatest(values: torch.Tensor, count: int) -> torch.Tensor:
    """Select by numpy, whose vector instructions select and sort many times faster than torch."""
    start = values.shape[1] - count
    top = np.partition(values.numpy(), start, axis=-1)[:, start:]
    return torch.from_numpy(np.sort(top, axis=-1)).flip(-1)


def sine_(x: torch.Tensor) -> torch.Tensor:
    """Compute the sine in place by numpy, at a third of the cost of torch's (MKL's) and as exact except for the last
    digit."""
    values = x.numpy()
    np.sin(values, out=values)
    return x


KERNELS = Kernels(
    linear=linear,
    zeros=zeros,
    unfolds=lambda channels: channels <= _NARROW,
    fused_decode_limit=_FUSED_LIMIT,
    greatest=greatest,
    draw_rows=_DRAW_ROWS,
    sine_=sine_,
)
