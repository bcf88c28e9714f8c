"""Linear layers whose weights lie in memory as the device's matrix product wants them."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

Linear = Callable[[torch.Tensor], torch.Tensor]
"""[rows, in] → [rows, out]."""

_PACK_FROM = 1 << 16
"""A smaller weight stays as it is: it is in the cache anyway, and a call by the packed product costs ten microseconds
more. Measured at 48 x 144: 1.7 µs against 11 for a row, 4 against 20 for sixteen; at 256 x 512 sixteen rows take half
the time packed."""

_PACK_ROWS = 256
"""The batch for which the layout is chosen. Measured: this one is as fast as any from 1 to 256 rows; one chosen for few
rows is several times slower with others."""


def linear(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
    """``x → x · weightᵀ + bias`` for a ``weight`` [out, in] that is given away.

    In host memory a large weight is reordered once, so that a step reads it at memory speed (measured against the
    layout it comes in, per step of a 135M model: 2 to 3 times in float32, 1.5 to 2 times in bfloat16). The arithmetic
    stays that of the dtype.
    """
    if weight.device.type != "cpu" or weight.numel() < _PACK_FROM or not torch.backends.mkldnn.is_available():
        return lambda x: F.linear(x, weight, bias)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _PACK_ROWS)
    product = torch.ops.mkldnn._linear_pointwise.default

    def apply(x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = product(x, packed, bias, "none", [], "")
        return result

    return apply
