"""Qwen2.5-Omni's towers: the vision encoder with windowed attention, and the audio encoder."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from transformers import AutoConfig, Qwen2_5OmniProcessor, WhisperFeatureExtractor
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import (
    Qwen2_5OmniAudioEncoder,
    Qwen2_5OmniVisionEncoder,
)

from omni_actors.models.common.encoder import RATE, Features, MediaEncoder, Samples
from omni_actors.models.common.load import load_part
from omni_actors.models.common.vision import Patches


class Encoder(MediaEncoder):
    """transformers' own networks. The processor pads every clip with silence before it makes the spectrum, and cuts the
    silence off after; a window's length of silence gives the same."""

    def build(self, folder: str, device: torch.device, dtype: torch.dtype) -> None:
        config = AutoConfig.from_pretrained(folder, local_files_only=True).thinker_config
        self.vision = self.sight(folder, Qwen2_5OmniProcessor.videos_kwargs["size"])
        self._spectrum = WhisperFeatureExtractor.from_pretrained(folder, local_files_only=True)
        self._eyes = load_part(Qwen2_5OmniVisionEncoder, config.vision_config, folder, "thinker.visual.", dtype, device)
        self._ears = load_part(
            Qwen2_5OmniAudioEncoder, config.audio_config, folder, "thinker.audio_tower.", dtype, device
        )

    def look(self, pictures: Sequence[Patches]) -> list[Features]:
        rows = torch.cat([picture.rows for picture in pictures]).to(self._eyes.device, self._eyes.dtype)
        grids = torch.tensor([picture.grid for picture in pictures], device=rows.device)
        made = self._eyes(rows, grid_thw=grids).pooler_output
        counts = [len(picture.rows) // self.vision.merge**2 for picture in pictures]
        return [{"features": features} for features in made.split(counts)]

    def together(self, samples: Samples) -> bool:
        return True

    def listen(self, clips: Sequence[Samples]) -> list[torch.Tensor]:
        spectra = [self._spectrum_of(samples) for samples in clips]
        lengths = torch.tensor([spectrum.shape[1] for spectrum in spectra], device=self._ears.device)
        convolved, tokens = self._ears._get_feat_extract_output_lengths(lengths)
        heard = self._ears(torch.cat(spectra, 1), feature_lens=lengths, aftercnn_lens=convolved).last_hidden_state
        return list(heard.split(tokens.tolist()))

    def _spectrum_of(self, samples: Samples) -> torch.Tensor:
        """[mels, frames]"""
        frames = -(-len(samples) // self._spectrum.hop_length)
        padded = np.concatenate((samples, np.zeros(self._spectrum.n_fft, np.float32)))
        made = self._spectrum(
            padded, sampling_rate=RATE, padding=False, truncation=False, return_attention_mask=True, return_tensors="pt"
        )
        spectrum: torch.Tensor = made["input_features"][0, :, :frames]
        return spectrum.to(self._ears.device, self._ears.dtype)
