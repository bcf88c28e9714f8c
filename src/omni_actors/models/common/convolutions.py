"""The receptive field of a stack of convolutions: the frames that a window of input needs around the wanted output."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import torch


def reach(stack: Any, *, causal: bool) -> tuple[int, int, int]:
    """Return the samples per frame of a decoder's input, and how many frames before and behind a frame have a part in
    its samples.

    ``stack`` is a module whose convolutions, in the order of ``modules()``, follow one another (those beside a residual
    path count as if they followed: the result is then too large, never too small). ``causal`` says that each
    convolution looks back only, whatever its own padding says: such modules pad, and trim, around the convolution.
    """
    rate = Fraction(1)  # samples per frame of the next convolution's input
    before = behind = Fraction(0)
    for module in stack.modules():
        if isinstance(module, torch.nn.ConvTranspose1d):
            kernel, stride, padding = module.kernel_size[0], module.stride[0], module.padding[0]
            span = (kernel - 1) * module.dilation[0]
            rate *= stride
            right = 0 if causal else padding
            before += Fraction(span - right) / rate
            behind += Fraction(right) / rate
        elif isinstance(module, torch.nn.Conv1d):
            span = (module.kernel_size[0] - 1) * module.dilation[0]
            right = 0 if causal else span - _padding(module)
            before += Fraction(span - right) / rate
            behind += Fraction(right) / rate
    return int(rate), math.ceil(before), math.ceil(behind)


def _padding(module: torch.nn.Conv1d) -> int:
    padding = module.padding
    if isinstance(padding, str):
        return (module.kernel_size[0] - 1) * module.dilation[0] // 2 if padding == "same" else 0
    return int(padding[0])
