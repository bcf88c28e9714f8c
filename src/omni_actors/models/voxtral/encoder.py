"""Voxtral's encoder and projector: 375 features for every 30 s of a clip, begun ones too."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from transformers import AutoConfig, AutoFeatureExtractor, VoxtralEncoder
from transformers.models.voxtral.modeling_voxtral import VoxtralMultiModalProjector

from omni_actors.models.common.audio_conditioned_lm import present
from omni_actors.models.common.audio_tower import RATE, AudioTower, Samples
from omni_actors.models.common.load import load_part, read_weights

WINDOW = 30 * RATE
FRAMES = 3000
"""Spectrogram frames of a window."""


class Encoder(AudioTower):
    """A clip is padded with silence to whole windows of 30 s, each of which the encoder sees alone."""

    def build(self, folder: str, device: torch.device, dtype: torch.dtype) -> None:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        self._extractor = AutoFeatureExtractor.from_pretrained(folder, local_files_only=True)
        prefix = present(folder, "model.audio_tower.", "audio_tower.")
        self._tower = load_part(VoxtralEncoder, config.audio_config, folder, prefix, dtype, device)
        # The class keeps its positions in float32, whatever the rest is in.
        self._tower.embed_positions.weight.data = read_weights(folder, prefix + "embed_positions.")["weight"].to(
            device, torch.float32
        )
        self._projector = VoxtralMultiModalProjector(config)
        projector = present(folder, "model.multi_modal_projector.", "multi_modal_projector.")
        self._projector.load_state_dict(read_weights(folder, projector))
        self._projector.to(device, dtype).eval()
        self._together = config.audio_config.intermediate_size  # neighbouring frames side by side

    def encode(self, samples: Samples) -> Iterator[torch.Tensor]:
        made = self._extractor(
            samples,
            sampling_rate=RATE,
            padding=True,
            truncation=False,
            pad_to_multiple_of=WINDOW,
            return_tensors="pt",
        )["input_features"]
        windows = made.reshape(made.shape[1], -1, FRAMES).transpose(0, 1)
        for window in windows:
            heard = self._tower(window[None].to(self._tower.device)).last_hidden_state
            yield self._projector(heard.reshape(-1, self._together))
