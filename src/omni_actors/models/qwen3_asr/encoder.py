"""Qwen3-ASR's audio tower and projector."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from transformers import AutoConfig, AutoFeatureExtractor
from transformers.models.qwen3_asr.modeling_qwen3_asr import Qwen3ASREncoder, Qwen3ASRMultiModalProjector

from omni_actors.models.common.audio_tower import RATE, AudioTower, Samples
from omni_actors.models.common.load import load_part, read_weights

WINDOWS = 4
"""Windows of attention that one step encodes."""


class Encoder(AudioTower):
    """The tower is given whole chunks of a second, and a mask of what is behind the clip's end."""

    def build(self, folder: str, device: torch.device, dtype: torch.dtype) -> None:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        self._extractor = AutoFeatureExtractor.from_pretrained(folder, local_files_only=True)
        self._tower = load_part(Qwen3ASREncoder, config.audio_config, folder, "model.audio_tower.", dtype, device)
        self._projector = Qwen3ASRMultiModalProjector(config)
        self._projector.load_state_dict(read_weights(folder, "model.multi_modal_projector."))
        self._projector.to(device, dtype).eval()
        # The tower attends within windows: what is cut between them comes out as it does in one.
        self._span = WINDOWS * config.audio_config.n_window_infer

    def encode(self, samples: Samples) -> Iterator[torch.Tensor]:
        made = self._extractor(samples, sampling_rate=RATE, padding=True, return_attention_mask=True)
        device, dtype = self._tower.device, self._tower.dtype
        for start in range(0, made["input_features"].shape[-1], self._span):
            features = made["input_features"][..., start : start + self._span].to(device, dtype)
            mask = made["attention_mask"][..., start : start + self._span].to(device)
            heard = self._tower(input_features=features, input_features_mask=mask).last_hidden_state
            yield self._projector(heard)
