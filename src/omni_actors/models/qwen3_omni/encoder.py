"""Qwen3-Omni's towers: the vision encoder with its deep features, and the audio encoder."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import AutoConfig, Qwen3OmniMoeProcessor, WhisperFeatureExtractor
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import (
    Qwen3OmniMoeAudioEncoder,
    Qwen3OmniMoeVisionEncoder,
)

from omni_actors.models.common.encoder import RATE, Features, MediaEncoder, Samples
from omni_actors.models.common.load import load_part
from omni_actors.models.common.vision import Patches


class Encoder(MediaEncoder):
    """The encoders of images, sound and video, which are transformers' own networks.

    Each clip is encoded alone, as transformers encodes one clip. Beside clips of unequal length transformers' processor
    pads, and padding changes a clip's last spectra and, under a second, the input of its convolutions."""

    def build(self, folder: str, device: torch.device, dtype: torch.dtype) -> None:
        config = AutoConfig.from_pretrained(folder, local_files_only=True).thinker_config
        self.vision = self.sight(folder, Qwen3OmniMoeProcessor.videos_kwargs["size"])
        self._spectrum = WhisperFeatureExtractor.from_pretrained(folder, local_files_only=True)
        self._eyes = load_part(
            Qwen3OmniMoeVisionEncoder, config.vision_config, folder, "thinker.visual.", dtype, device
        )
        self._ears = load_part(
            Qwen3OmniMoeAudioEncoder, config.audio_config, folder, "thinker.audio_tower.", dtype, device
        )
        # Clips whose spectrum fills one of the tower's chunks are padded alike, whatever is beside them.
        self._chunk: int = 2 * config.audio_config.n_window * self._spectrum.hop_length

    def look(self, pictures: Sequence[Patches]) -> list[Features]:
        rows = torch.cat([picture.rows for picture in pictures]).to(self._eyes.device, self._eyes.dtype)
        grids = torch.tensor([picture.grid for picture in pictures], device=rows.device)
        made = self._eyes(rows, grid_thw=grids)
        counts = [len(picture.rows) // self.vision.merge**2 for picture in pictures]
        deep = torch.stack(made.deepstack_features).split(counts, dim=1)
        return [
            {"features": features, "deepstack": levels}
            for features, levels in zip(made.pooler_output.split(counts), deep, strict=True)
        ]

    def together(self, samples: Samples) -> bool:
        return len(samples) >= self._chunk

    def listen(self, clips: Sequence[Samples]) -> list[torch.Tensor]:
        spectra = [self._spectrum_of(samples) for samples in clips]
        lengths = torch.tensor([spectrum.shape[1] for spectrum in spectra], device=self._ears.device)
        heard = self._ears(torch.cat(spectra, dim=1), feature_lens=lengths).last_hidden_state
        chunk = 2 * self._ears.n_window
        counts = [sum(_tokens(min(chunk, n - at)) for at in range(0, n, chunk)) for n in lengths.tolist()]
        return list(heard.split(counts))

    def _spectrum_of(self, samples: Samples) -> torch.Tensor:
        """[mels, frames]"""
        made = self._spectrum(
            samples,
            sampling_rate=RATE,
            padding=True,
            truncation=False,
            return_attention_mask=True,
            return_tensors="pt",
        )
        frames = int(made["attention_mask"].sum())
        spectrum: torch.Tensor = made["input_features"][0, :, :frames]
        return spectrum.to(self._ears.device, self._ears.dtype)


def _tokens(frames: int) -> int:
    """Count the tokens of a chunk of so many frames: three convolutions of stride 2 each halve the count, rounding
    up."""
    for _ in range(3):
        frames = (frames + 1) // 2
    return frames
