"""The codec: Mimi's decoder, out of the same folder."""

from __future__ import annotations

from pathlib import Path

from transformers import CsmConfig, MimiModel

from omni_actors.models.common import codec_stage
from omni_actors.models.common.mimi import MimiStream
from omni_actors.models.common.speech import part
from omni_actors.worker.checks import TensorSpec


class Codec(codec_stage.CodecStage):
    frames = "codes"

    def start(self, folder: Path) -> None:
        config = CsmConfig.from_pretrained(folder, local_files_only=True).codec_config
        config.encoder_config = None
        self._model = part(MimiModel, self.hello, "codec_model.", config)
        self.frame = TensorSpec("int64", (None, config.num_quantizers), 0, config.codebook_size)
        self.sample_rate, self.samples_per_frame = config.sampling_rate, config.frame_size

    def stream(self) -> MimiStream:
        quantizer = self._model.quantizer
        return MimiStream(self._model.decoder, lambda codes: quantizer.decode(codes.T[None]))
