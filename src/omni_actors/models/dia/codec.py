"""The codec: a DAC in a folder beside the checkpoint, named by the checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers import DacModel

from omni_actors.models.common.convolutions import reach
from omni_actors.models.common.processors import audio_tokenizer_folder
from omni_actors.models.common.speech import folder_of, load_model, prepare_torch
from omni_actors.worker.engines.oneshot.codec import CodecAdapter


class Codec(CodecAdapter):
    """DAC's decoder looks a few frames around each frame, to both sides."""

    paddable = False

    def prepare(self, progress: Callable[[str, float | None], None]) -> dict[str, Any]:
        prepare_torch(self.hello)
        progress("loading the codec", None)
        self._model = load_model(DacModel, self.hello, audio_tokenizer_folder(folder_of(self.hello)))
        self._model.encoder = None
        config = self._model.config
        self.sample_rate = config.sampling_rate
        self.groups, self.codebook_size = config.n_codebooks, config.codebook_size
        self.samples_per_frame, self.sufficient_context, behind = reach(self._model.decoder, causal=False)
        self.unsettled = behind * self.samples_per_frame
        return {}

    def decode(self, codes: torch.Tensor) -> torch.Tensor:
        samples: torch.Tensor = self._model.decode(audio_codes=codes.transpose(1, 2)).audio_values
        return samples.reshape(len(codes), -1)
