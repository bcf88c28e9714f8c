"""The families' own classes, without torchvision: the reference for this project's stages.

``AutoProcessor.from_pretrained`` builds a video processor, and transformers' video processors need torchvision, which
this project does not install. :func:`processor` builds the processor's class from its parts instead, with
:class:`Frames` in place of the video processor: the same arithmetic in torch alone.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from torch.nn import functional
from transformers import AutoFeatureExtractor, AutoTokenizer, BatchFeature, PreTrainedModel, ProcessorMixin
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil, smart_resize


class Frames:
    """The operation of ``Qwen2VLVideoProcessor`` on sampled frames. Frames are uint8 [T, H, W, 3].

    In order: resize all frames to the multiple of ``patch_size * merge_size`` from ``smart_resize`` for ``size``
    (bicubic, antialiased, rounded to whole levels and clamped to 0…255), scale and normalise in one step in float32
    (``(x - 255 * mean) / (255 * std)``), repeat the last frame until ``temporal_patch_size`` divides their number, and
    cut into patches ordered [t, h / merge, w / merge, merge, merge], each flattened as [channel, frame, y, x].
    """

    valid_kwargs = None

    def __init__(self, image: Qwen2VLImageProcessorPil) -> None:
        self.patch_size, self.merge_size = image.patch_size, image.merge_size
        self.temporal_patch_size = image.temporal_patch_size
        self.mean, self.std = torch.tensor(image.image_mean), torch.tensor(image.image_std)

    def __call__(
        self, videos: list[NDArray[np.uint8]], size: dict[str, int], return_tensors: str | None = None, **_: Any
    ) -> BatchFeature:
        """Return ``pixel_values_videos`` float32 [patches of all videos, values] and ``video_grid_thw`` int64 [videos,
        3]."""
        made = [self.patches(torch.from_numpy(frames), size) for frames in videos]
        return BatchFeature(
            {
                "pixel_values_videos": torch.cat([patches for patches, _ in made]),
                "video_grid_thw": torch.tensor([grid for _, grid in made]),
            }
        )

    def patches(self, frames: torch.Tensor, size: dict[str, int]) -> tuple[torch.Tensor, tuple[int, int, int]]:
        """Return one video's patches and its grid (t, h, w) in patches."""
        patch, merge, temporal = self.patch_size, self.merge_size, self.temporal_patch_size
        height, width = smart_resize(
            frames.shape[1],
            frames.shape[2],
            factor=patch * merge,
            min_pixels=size["shortest_edge"],
            max_pixels=size["longest_edge"],
        )
        pixels = frames.permute(0, 3, 1, 2).float()
        pixels = functional.interpolate(pixels, (height, width), mode="bicubic", antialias=True)
        pixels = pixels.round().clamp(0, 255)
        scale = 255.0
        pixels = (pixels - (self.mean * scale).view(1, 3, 1, 1)) / (self.std * scale).view(1, 3, 1, 1)
        pixels = torch.cat([pixels, pixels[-1:].expand(-len(pixels) % temporal, -1, -1, -1)])
        grid = (len(pixels) // temporal, height // patch, width // patch)
        cut = pixels.view(grid[0], temporal, 3, grid[1] // merge, merge, patch, grid[2] // merge, merge, patch).permute(
            0, 3, 6, 4, 7, 2, 1, 5, 8
        )
        return cut.reshape(grid[0] * grid[1] * grid[2], -1), grid


def model(folder: Path) -> PreTrainedModel:
    """Return the model of a `folder`, of the class in its config.json, for inference."""
    settings = json.loads((folder / "config.json").read_text())
    made = getattr(transformers, settings["architectures"][0]).from_pretrained(folder).eval()
    if hasattr(made, "talker"):
        # Qwen3-Omni's talker, which places a prompt that has audio in it, looks for this in its own configuration
        # (transformers 5.23), where neither the class nor the published checkpoints put it.
        made.talker.config.audio_config = made.config.thinker_config.audio_config
    assert isinstance(made, PreTrainedModel)
    return made


def processor(folder: Path) -> ProcessorMixin:
    """Return the processor of an omni `folder`, of the class in its preprocessor_config.json.

    Call the processor as transformers documents (``processor(text=…, images=…, videos=…, audio=…,
    return_tensors="pt")``); its ``apply_chat_template`` works for templates only (``tokenize=False``). Videos are
    arrays of sampled frames.
    """
    image = Qwen2VLImageProcessorPil.from_pretrained(folder)
    audio = AutoFeatureExtractor.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    settings = json.loads((folder / "preprocessor_config.json").read_text())
    base = getattr(transformers, settings["processor_class"])

    class FromParts(base):  # type: ignore[misc, valid-type]
        def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> Any:
            if argument_name == "video_processor":
                return type(argument)
            return super().check_argument_for_proper_class(argument_name, argument)

    made = FromParts(image, Frames(image), audio, tokenizer, chat_template=tokenizer.chat_template)
    assert isinstance(made, ProcessorMixin)
    return made
