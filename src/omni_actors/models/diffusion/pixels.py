"""Conversion between pictures as arrays of pixels and as tensors of a VAE."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from omni_actors.worker.checks import OutputError

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
"""A picture: uint8 [height, width, 1, 3 or 4]."""


def to_pixels(image: torch.Tensor) -> Pixels:
    """Return the pixels of a decoded picture [1, channels, height, width] from -1 to 1, rounded as diffusers rounds.

    Raises:
        OutputError: The picture has numbers that are not finite.
    """
    numbers = image[0].float()
    if not torch.isfinite(numbers).all():
        raise OutputError("the decoded picture is not finite")
    scaled = (numbers * 0.5 + 0.5).clamp(0, 1)
    array: Pixels = (scaled * 255).round().to(torch.uint8).permute(1, 2, 0).contiguous().cpu().numpy()
    return array


def shrunk(latents: torch.Tensor, longest: int) -> torch.Tensor:
    """Return latents [1, channels, …, height, width] whose longer side is at most ``longest``, averaged if needed."""
    height, width = latents.shape[-2:]
    if max(height, width) <= longest:
        return latents
    scale = longest / max(height, width)
    size = (max(1, round(height * scale)), max(1, round(width * scale)))
    flat = torch.nn.functional.interpolate(latents.flatten(0, -3)[None], size=size, mode="area")
    return flat.reshape(*latents.shape[:-2], *size)
