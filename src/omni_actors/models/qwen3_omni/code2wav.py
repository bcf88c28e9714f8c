"""Code2wav: codec frames (12.5 a second) to sound, 24 kHz mono."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers import AutoConfig
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeCode2Wav

from omni_actors.models.common.load import load_part
from omni_actors.models.common.transformer_codec import TransformerCodec
from omni_actors.models.qwen3_omni.pipeline import SAMPLE_RATE


class Code2Wav(TransformerCodec):
    """The codec decoder. A frame's last samples need the next frame: transposed convolutions look one step ahead, and
    the network leaves out samples that depend on a missing frame (555 of 1920 samples in the published checkpoints)."""

    def prepare(self, progress: Callable[[str, float | None], None]) -> dict[str, Any]:
        folder = self.hello.model
        assert folder is not None
        progress("loading code2wav", None)
        config = AutoConfig.from_pretrained(folder, local_files_only=True).code2wav_config
        dtype = getattr(torch, self.hello.dtype)
        model = load_part(Qwen3OmniMoeCode2Wav, config, folder, "code2wav.", dtype, self.hello.device)
        self.sample_rate = SAMPLE_RATE
        self.groups = config.num_quantizers
        self.codebook_size = config.codebook_size

        def embed(codes: torch.Tensor) -> torch.Tensor:
            embedded: torch.Tensor = model.code_embedding(codes + model.code_offset.view(-1)).mean(2)
            return embedded.transpose(1, 2)

        self.assemble(embed, model.pre_transformer, [*model.upsample, *model.decoder])
        return {}
