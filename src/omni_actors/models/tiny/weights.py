"""Random weights with which a tiny model behaves: outputs vary, depend on every input and are not nearly tied.

The library's own initialisation (normal, 0.02) makes a small transformer's layers almost the identity: the model
repeats one token, and an image or a wrong layer changes nothing visible to a test. Here a matrix keeps the scale of its
input (normal, gain / sqrt(fan in)), embeddings are of unit scale, and norms and biases are not trivial.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fnmatch import fnmatchcase

import torch
from torch import nn

TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def initialise(model: nn.Module, seed: int, gains: Mapping[str, float]) -> None:
    """Fill every parameter of `model`, in place, from one generator seeded with `seed`.

    `gains` maps patterns of parameter names (``fnmatch``) to factors on the usual scale; the last match wins. Biases
    and norms' weights have a spread of 0.1 by their gain; other vectors (layer scales, the logarithms of snake
    activations) keep the value from the model's constructor, times the gain.
    """
    generator = torch.Generator().manual_seed(seed)
    transposed = {id(module.weight): module.stride[0] for module in model.modules() if isinstance(module, TRANSPOSED)}
    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            gain = 1.0
            for pattern, factor in gains.items():
                if fnmatchcase(name, pattern):
                    gain = factor
            noise = torch.empty(parameter.shape).normal_(generator=generator)
            if id(parameter) in embeddings:
                parameter.copy_(noise * gain)
            elif id(parameter) in transposed:
                fan_in = parameter[:, 0].numel() / transposed[id(parameter)]
                parameter.copy_(noise * (gain / math.sqrt(fan_in)))
            elif parameter.dim() >= 2:
                # Experts' matrices are stacked: [expert, out, in]. A convolution is [out, in, kernel…].
                stacked = parameter.dim() == 3 and "experts" in name
                fan_in = parameter.shape[-1] if stacked else parameter[0].numel()
                parameter.copy_(noise * (gain / math.sqrt(fan_in)))
            elif name.endswith("bias"):
                parameter.copy_(noise * (0.1 * gain))
            elif "norm" in name or "ln_" in name:
                parameter.copy_((1 + 0.1 * noise) * gain)
            else:
                parameter.mul_(gain)


def silence(head: nn.Linear, rows: list[int], remaining: float = 0.0) -> None:
    """Make the tokens `rows` of an output head unlikely: their logits shrink to `remaining` of the original.

    At 0 the tokens are never the best, beside hundreds that spread around 0; above 1 they are likelier than others.
    """
    with torch.no_grad():
        head.weight[rows] *= remaining


def parameters(model: nn.Module) -> int:
    """Return the number of a model's parameters."""
    return sum(parameter.numel() for parameter in model.parameters())
