"""The codec: Mimi's architecture around continuous latents, in a folder beside the checkpoint, named by the
checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import PocketTTSAudioTokenizerConfig, PocketTTSAudioTokenizerModel

from omni_actors.models.common import codec_stage
from omni_actors.models.common.mimi import MimiStream
from omni_actors.models.common.processors import audio_tokenizer_folder, processor_settings
from omni_actors.models.common.speech import load_model
from omni_actors.worker.checks import TensorSpec

FADE_IN_S = 0.005
"""The processor's default."""


class Codec(codec_stage.CodecStage):
    frames = "latents"

    def start(self, folder: Path) -> None:
        place = audio_tokenizer_folder(folder)
        config = PocketTTSAudioTokenizerConfig.from_pretrained(place, local_files_only=True)
        config.encoder_config = None
        self._model = load_model(PocketTTSAudioTokenizerModel, self.hello, place, config=config)
        self.frame = TensorSpec("float", (None, self._model.latent_proj.in_channels))
        self.sample_rate, self.samples_per_frame = config.sampling_rate, config.frame_size
        self._fade = int(processor_settings(folder).get("fade_in_duration", FADE_IN_S) * self.sample_rate)

    def stream(self) -> FadedStream:
        return FadedStream(self._model, self._fade)


class FadedStream:
    """Latents [n, width] of one sentence. A new decoder begins with a step, so the first ``fade`` samples rise."""

    def __init__(self, model: Any, fade: int) -> None:
        self._stream = MimiStream(model.decoder, lambda latents: model.latent_proj(latents.to(model.dtype).T[None]))
        self._fade = torch.linspace(0, 1, fade, device=model.device)

    def push(self, frames: torch.Tensor) -> torch.Tensor:
        samples = self._stream.push(frames)
        count = min(len(samples), len(self._fade))
        if count:
            samples = torch.cat([samples[:count] * self._fade[:count], samples[count:]])
            self._fade = self._fade[count:]
        return samples
