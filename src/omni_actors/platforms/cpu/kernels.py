"""Kernels of the processor, each kept because measurements showed it to be faster."""

from __future__ import annotations

import math

import numpy as np
import torch

from omni_actors.platforms.runtime import kernels
from omni_actors.platforms.runtime.kernels import Kernels, Linear

_PACK_FROM = 1 << 16
"""A smaller weight stays as it is: it is in the cache anyway, and a call by the packed product costs ten microseconds
more. Measured at 48 x 144: 1.7 µs against 11 for a row, 4 against 20 for sixteen; at 256 x 512 sixteen rows take half
the time packed."""

_PACK_ROWS = 256
"""The batch for which the layout is chosen. Measured: this one is as fast as any from 1 to 256 rows; one chosen for few
rows is several times slower with others."""

_FUSED_LIMIT = 512
"""Keys up to which a group of decodes in a 16-bit dtype runs as one fused call. Measured: below it the products' fixed
cost is more than twice the fused call's, far above it they are twice as fast; in float32 they always are."""

_NARROW = 64
"""Channels up to which a dilated convolution is done as one product over its unfolded input. Measured for 2 to 16
channels: 2 to 4 times as fast as torch's own for one row, 1.3 to 1.8 times for four."""

_DRAW_ROWS = 8
"""Rows drawn from at once: so few stay in the cache."""


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
    """numpy selects and sorts with vector instructions, many times faster than torch."""
    start = values.shape[1] - count
    top = np.partition(values.numpy(), start, axis=-1)[:, start:]
    return torch.from_numpy(np.sort(top, axis=-1)).flip(-1)


def sine_(x: torch.Tensor) -> torch.Tensor:
    """In place. numpy's costs a third of what torch's (MKL's) does, and is as exact but for the last digit."""
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
