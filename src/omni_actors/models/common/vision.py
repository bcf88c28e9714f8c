"""Pictures and frames to the patches for Qwen's vision towers, as transformers' processors make them.

Images go through the processor without torchvision (Pillow's resampling). Its video processor needs torchvision, so the
same arithmetic is done here in torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil, smart_resize

Grid = tuple[int, int, int]

Pixels = np.ndarray[Any, np.dtype[np.uint8]]

_FRAMES_AT_ONCE = 16
"""Resized in one go: a long video's frames as float32 are large."""


@dataclass(frozen=True, slots=True)
class Patches:
    """``rows`` float32 [t * h * w, values] in the order of ``grid``'s merged squares; ``grid`` is (t, h, w) in
    patches."""

    rows: torch.Tensor
    grid: Grid


class Vision:
    """A folder's image and video processor. ``video_pixels`` are the fewest and most pixels of a frame."""

    def __init__(
        self,
        folder: str | Path,
        video_pixels: tuple[int, int],
        most_pixels: tuple[int | None, int | None] = (None, None),
    ) -> None:
        """``most_pixels`` of an image and of a frame limit a deployment to smaller sizes than the checkpoint's."""
        settings = {} if most_pixels[0] is None else {"max_pixels": most_pixels[0]}
        made = Qwen2VLImageProcessorPil.from_pretrained(folder, local_files_only=True, **settings)
        self._images = made
        self._video_pixels = video_pixels if most_pixels[1] is None else (video_pixels[0], most_pixels[1])
        self.merge = int(made.merge_size)
        self.temporal = int(made.temporal_patch_size)
        self._patch = int(made.patch_size)
        scale = 1 / made.rescale_factor
        self._mean = (torch.tensor(made.image_mean) * scale).view(1, 3, 1, 1)
        self._std = (torch.tensor(made.image_std) * scale).view(1, 3, 1, 1)

    def image(self, pixels: Pixels) -> Patches:
        """Return the patches of uint8 [height, width, 3]. Raises :class:`ValueError` for an image that is far too long
        and narrow."""
        made = self._images(images=[pixels], input_data_format="channels_last", return_tensors="pt")
        t, h, w = made["image_grid_thw"][0].tolist()
        return Patches(made["pixel_values"], (t, h, w))

    def video(self, frames: Pixels) -> Patches:
        """Return the patches of uint8 [frames, height, width, 3]. The last frame is repeated until the temporal patch
        is full. Raises :class:`ValueError` for frames that are far too long and narrow."""
        patch, merge, temporal = self._patch, self.merge, self.temporal
        least, most = self._video_pixels
        height, width = smart_resize(
            frames.shape[1], frames.shape[2], factor=patch * merge, min_pixels=least, max_pixels=most
        )
        resized = torch.cat([self._resize(part, height, width) for part in _parts(frames)])
        normal = (resized - self._mean) / self._std
        full = torch.cat((normal, normal[-1:].expand(-len(normal) % temporal, -1, -1, -1)))
        t, h, w = len(full) // temporal, height // patch, width // patch
        cut = full.view(t, temporal, 3, h // merge, merge, patch, w // merge, merge, patch)
        return Patches(cut.permute(0, 3, 6, 4, 7, 2, 1, 5, 8).reshape(t * h * w, -1), (t, h, w))

    @staticmethod
    def _resize(frames: torch.Tensor, height: int, width: int) -> torch.Tensor:
        """Return whole numbers from 0 to 255 in float32 [n, 3, height, width] of uint8 [n, h, w, 3]."""
        pixels = frames.permute(0, 3, 1, 2).float()
        if pixels.shape[2:] != (height, width):
            pixels = functional.interpolate(pixels, (height, width), mode="bicubic", antialias=True)
        return pixels.round_().clamp_(0, 255)


def _parts(frames: Pixels) -> tuple[torch.Tensor, ...]:
    parts: tuple[torch.Tensor, ...] = torch.from_numpy(frames).split(_FRAMES_AT_ONCE)
    return parts
