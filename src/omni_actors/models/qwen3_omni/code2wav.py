"""Code2wav: codec frames (12.5 a second) to sound, 24 kHz mono."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers import AutoConfig
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeCode2Wav

from omni_actors.models.common.codec_memory import RememberingDecoder
from omni_actors.models.common.convolutions import reach
from omni_actors.models.common.load import load_part
from omni_actors.models.qwen3_omni.pipeline import SAMPLE_RATE
from omni_actors.worker.engines.codec import CodecAdapter


class Code2Wav(CodecAdapter):
    """A transformer over frames in a sliding window, then convolutions. It remembers; or a window of frames is run
    through the transformer whole, and through the convolutions with just the few frames that these see.

    A frame's last samples need the next frame: transposed convolutions look one step ahead, and the network leaves out
    what it cannot know (555 of 1920 samples in the published checkpoints).
    """

    def prepare(self, progress: Callable[[str, float | None], None]) -> dict[str, Any]:
        folder = self.hello.model
        assert folder is not None
        progress("loading code2wav", None)
        config = AutoConfig.from_pretrained(folder, local_files_only=True).code2wav_config
        dtype = getattr(torch, self.hello.dtype)
        model = self._model = load_part(Qwen3OmniMoeCode2Wav, config, folder, "code2wav.", dtype, self.hello.device)
        self.sample_rate = SAMPLE_RATE
        self.samples_per_frame = int(model.total_upsample)
        self.groups = config.num_quantizers
        self.codebook_size = config.codebook_size
        self._convolutions_see = convolution_context(model)
        self.sufficient_context = attention_context(config) + self._convolutions_see
        self._remembering = RememberingDecoder(
            lambda codes: self._embed(codes).transpose(1, 2), model.pre_transformer, [*model.upsample, *model.decoder]
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
    return len(config.layer_types) * int(config.sliding_window - 1)


def convolution_context(model: Any) -> int:
    """Frames before a frame that code2wav's convolutions let into it."""
    _, before, _ = reach(torch.nn.ModuleList([*model.upsample, *model.decoder]), causal=True)
    return before
