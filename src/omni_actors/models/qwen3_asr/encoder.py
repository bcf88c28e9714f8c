"""Qwen3-ASR's audio tower and projector."""

from __future__ import annotations

import torch
from transformers import AutoConfig, AutoFeatureExtractor
from transformers.models.qwen3_asr.modeling_qwen3_asr import Qwen3ASREncoder, Qwen3ASRMultiModalProjector

from omni_actors.models.common.audio_tower import RATE, AudioTower, Samples
from omni_actors.models.common.load import load_part, read_weights


class Encoder(AudioTower):
    """The tower is given whole chunks of a second, and a mask of what is behind the clip's end."""

    def build(self, folder: str, device: torch.device, dtype: torch.dtype) -> None:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        self._extractor = AutoFeatureExtractor.from_pretrained(folder, local_files_only=True)
        self._tower = load_part(Qwen3ASREncoder, config.audio_config, folder, "model.audio_tower.", dtype, device)
        self._projector = Qwen3ASRMultiModalProjector(config)
        self._projector.load_state_dict(read_weights(folder, "model.multi_modal_projector."))
        self._projector.to(device, dtype).eval()

    def encode(self, samples: Samples) -> torch.Tensor:
        made = self._extractor(samples, sampling_rate=RATE, padding=True, return_attention_mask=True)
        features = made["input_features"].to(self._tower.device, self._tower.dtype)
        mask = made["attention_mask"].to(self._tower.device)
        heard = self._tower(input_features=features, input_features_mask=mask).last_hidden_state
        projected: torch.Tensor = self._projector(heard)
        return projected
