"""The vocoder's second half, ``Qwen2_5OmniToken2WavBigVGANModel`` (https://arxiv.org/abs/2206.04658), written out.

Two measures make the computation cheap. Each stage of convolutions keeps only the part of a window's context that later
stages reach: most of the work is done at high rates, where the context is short. And most of the work is activations
between up- and downsampling by filters shared by all channels: few long channels are folded into many short ones, the
shape for which libraries' depthwise convolutions are fast.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import (
    Qwen2_5OmniAMPBlock,
    Qwen2_5OmniAntiAliasedActivation1d,
    Qwen2_5OmniToken2WavBigVGANModel,
)

from omni_actors.platforms.runtime.kernels import Kernels

ROWS = 16
"""So many channels at least go through a depthwise convolution at once."""

_RATIO, _TAPS = 2, 12
_MARGIN = 5
"""Samples on either side of one that its activation is made of; so many, at the doubled rate, that the second filter
takes on either side of two."""


@dataclass(frozen=True, slots=True)
class Activation:
    """``frequency`` and ``amplitude`` [channels, 1, 1] of a snake (https://arxiv.org/abs/2006.08195), and the filters
    [channels * folds, 1, taps] before and behind it."""

    frequency: torch.Tensor
    amplitude: torch.Tensor
    up: torch.Tensor
    down: torch.Tensor
    folds: int
    kernels: Kernels

    @staticmethod
    def of(module: Qwen2_5OmniAntiAliasedActivation1d, kernels: Kernels) -> Activation:
        up, down, snake = module.upsample, module.downsample, module.act
        shape = (up.ratio, up.kernel_size, down.stride, down.kernel_size)
        if shape != (_RATIO, _TAPS, _RATIO, _TAPS):
            raise ValueError(f"the vocoder's activations sample by {shape}, not by 2 with 12 taps")
        channels = len(snake.alpha)
        folds = max(1, ROWS // channels)

        def rows(taps: torch.Tensor) -> torch.Tensor:
            return taps.expand(channels * folds, -1, -1).contiguous()

        frequency, beta = (value.exp()[:, None, None] for value in (snake.alpha, snake.beta))
        amplitude = 1 / (beta + snake.no_div_by_zero)
        return Activation(frequency, amplitude, rows(up.ratio * up.filter), rows(down.filter), folds, kernels)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, channels, samples] → the same shape."""
        batch, channels, length = x.shape
        folds = math.gcd(self.folds, length)
        if length // folds < _MARGIN:
            folds = 1
        pieces = x.unflatten(-1, (folds, -1))
        filled = x.new_empty(batch, channels, folds, length // folds + 2 * _MARGIN)
        filled[..., _MARGIN:-_MARGIN] = pieces
        filled[:, :, 0, :_MARGIN] = x[..., :1]
        filled[:, :, -1, -_MARGIN:] = x[..., -1:]
        if folds > 1:
            filled[:, :, 1:, :_MARGIN] = pieces[:, :, :-1, -_MARGIN:]
            filled[:, :, :-1, -_MARGIN:] = pieces[:, :, 1:, :_MARGIN]
        rows = channels * folds
        fine = F.conv_transpose1d(
            filled.flatten(1, 2), self.up[:rows], stride=_RATIO, padding=_RATIO * _MARGIN, groups=rows
        ).unflatten(1, (channels, folds))
        wave = self.kernels.sine_(fine * self.frequency)
        fine.addcmul_(wave.mul_(wave), self.amplitude)
        # What lies beyond the sequence's ends is what lies at them, at this rate too.
        fine[:, :, 0, :_MARGIN] = fine[:, :, 0, _MARGIN : _MARGIN + 1]
        fine[:, :, -1, -_MARGIN:] = fine[:, :, -1, -_MARGIN - 1 : -_MARGIN]
        return F.conv1d(fine.flatten(1, 2), self.down[:rows], stride=_RATIO, groups=rows).reshape(x.shape)


class Block:
    """Three pairs of convolutions, each behind an activation, with residual connections."""

    def __init__(self, module: Qwen2_5OmniAMPBlock, kernels: Kernels) -> None:
        activations = [Activation.of(activation, kernels) for activation in module.activations]
        self._layers = list(zip(activations[::2], module.convs1, activations[1::2], module.convs2, strict=True))
        convolutions: list[Any] = [*module.convs1, *module.convs2]
        self.reach = sum(int(c.padding[0]) + _MARGIN for c in convolutions)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        for before, first, between, second in self._layers:
            x = second(between(first(before(x)))).add_(x)
        return x


class BigVGAN:
    """The vocoder's network. The weights are the model's own tensors, not copies."""

    def __init__(self, model: Qwen2_5OmniToken2WavBigVGANModel, kernels: Kernels) -> None:
        self._model = model
        self._ups: list[Any] = [up[0] for up in model.ups]
        count = model.num_residual_blocks
        blocks = [Block(block, kernels) for block in model.resblocks]
        self._stages = [blocks[i * count : (i + 1) * count] for i in range(len(self._ups))]
        self._last = Activation.of(model.activation_post, kernels)
        rates = [1]
        for up in self._ups:
            rates.append(rates[-1] * int(up.stride[0]))
        self._rates, self.hop = rates[:-1], rates[-1]
        self._needed = self._needs()

    def _needs(self) -> list[int]:
        """Frames on either side of a window that are still needed before each stage."""
        reach = int(self._model.conv_post.padding[0]) + _MARGIN
        needs = []
        for up, blocks, rate in reversed(list(zip(self._ups, self._stages, self._rates, strict=True))):
            reach += max(block.reach for block in blocks)
            kernel, stride, padding = up.kernel_size[0], up.stride[0], up.padding[0]
            reach = max(math.ceil((reach + kernel - 1 - padding) / stride), math.ceil((reach + padding) / stride))
            needs.append(math.ceil(reach / rate))
        return needs[::-1]

    def __call__(self, mel: torch.Tensor, first: int, last: int) -> torch.Tensor:
        """Log-mel [batch, mels, frames] → samples [batch, (last - first) * hop] of frames ``first … last - 1``."""
        hidden = self._model.conv_pre(self._model.process_mel_spectrogram(mel))
        start, stop = 0, mel.shape[-1]
        for up, blocks, rate, needed in zip(self._ups, self._stages, self._rates, self._needed, strict=True):
            kept, start, stop = start, max(start, first - needed), min(stop, last + needed)
            hidden = up(hidden[..., (start - kept) * rate : (stop - kept) * rate])
            hidden = torch.stack([block(hidden) for block in blocks]).mean(0)
        sound: torch.Tensor = self._model.conv_post(self._last(hidden))
        return sound[:, 0, (first - start) * self.hop : (last - start) * self.hop].clamp(-1, 1)
