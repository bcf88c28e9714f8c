"""Code2wav: codec frames (12.5 a second) to sound, 24 kHz mono."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from transformers import AutoConfig
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeCode2Wav

from omni_actors.models.common.codec_memory import RememberingDecoder
from omni_actors.models.common.load import load_part
from omni_actors.models.qwen3_omni.pipeline import SAMPLE_RATE
from omni_actors.worker.engines.codec import CodecAdapter

KERNEL = 7
"""Of every convolution that looks back."""

DILATIONS = (1, 3, 9)
"""Of a block's residual units. Like the kernel, they are in the class and not in the config."""


class Code2Wav(CodecAdapter):
    """transformers' own network. Its transformer sees ``sliding_window`` frames in each layer, its convolutions a few
    frames in all: so the former runs over the whole of a window, the latter over its end alone.

    A frame's last samples need the next frame: transposed convolutions look one step ahead, and the network leaves out
    what it cannot know (555 of 1920 samples in the published checkpoints).
    """

    def prepare(self, progress: Callable[[str, float | None], None]) -> dict[str, Any]:
        folder = self.hello.model
        assert folder is not None
        progress("loading code2wav", None)
        config = AutoConfig.from_pretrained(folder, local_files_only=True).code2wav_config
        dtype = getattr(torch, self.hello.dtype)
        self._model = load_part(Qwen3OmniMoeCode2Wav, config, folder, "code2wav.", dtype, self.hello.device)
        self.sample_rate = SAMPLE_RATE
        self.samples_per_frame = int(self._model.total_upsample)
        self.groups = config.num_quantizers
        self.codebook_size = config.codebook_size
        self._convolutions_see = convolution_context(config.upsample_rates, config.upsampling_ratios)
        self.sufficient_context = attention_context(config) + self._convolutions_see
        model = self._model
        blocks = [*model.upsample, *model.decoder]
        self._remembering = RememberingDecoder(
            lambda codes: self._embed(codes).transpose(1, 2), model.pre_transformer, blocks
        )
        return {}

    def _embed(self, codes: torch.Tensor) -> torch.Tensor:
        embedded: torch.Tensor = self._model.code_embedding(codes + self._model.code_offset.view(-1)).mean(2)
        return embedded

    def remember(self) -> torch.Tensor:
        return self._remembering.fresh(self.groups, self.hello.device)

    def decode_next(
        self, codes: torch.Tensor, begins: torch.Tensor, memories: torch.Tensor, fresh: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return self._remembering(codes, begins, memories, fresh)

    def decode(self, codes: torch.Tensor) -> torch.Tensor:
        samples: torch.Tensor = self._model(codes.transpose(1, 2))[:, 0]
        return samples

    def decode_after(self, codes: torch.Tensor, context: int, begins: torch.Tensor) -> torch.Tensor:
        model = self._model
        embedded = self._embed(codes)
        # Positions count from the stream's begin: rotations are rounded then as they are in the whole.
        positions = begins[:, None] + torch.arange(codes.shape[1], device=codes.device)
        seen = model.pre_transformer(inputs_embeds=embedded, position_ids=positions).last_hidden_state
        skipped = max(0, context - self._convolutions_see)
        sound = seen[:, skipped:].transpose(1, 2)
        for block in (*(layer for blocks in model.upsample for layer in blocks), *model.decoder):
            sound = block(sound)
        return sound[:, 0, (context - skipped) * self.samples_per_frame :].clamp(-1, 1)


def attention_context(config: Any) -> int:
    """Frames before a frame that code2wav's transformer lets into it: each layer as many as its window holds."""
    reach = config.sliding_window - 1
    return sum(reach for kind in config.layer_types if kind == "sliding_attention")


def convolution_context(rates: list[int], ratios: list[int]) -> int:
    """Frames before a frame that code2wav's convolutions let into it, by its upsampling ``rates`` (behind) and
    ``ratios`` (before the decoder). Counted from the last layer to the first, in steps of the layer's input: a
    convolution reaches ``(kernel - 1) * dilation`` steps back, a transposed one none, and a step of it has ``rate`` of
    the next layer's."""
    back = KERNEL - 1
    reach = back
    for rate in reversed(rates):
        reach = math.ceil((reach + back * sum(DILATIONS)) / rate)
    reach += back
    for ratio in reversed(ratios):
        reach = math.ceil((reach + back) / ratio)
    return reach
