"""The codec stage: frames to sound."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from omni_actors.models.common.transformer_codec import TransformerCodec
from omni_actors.models.qwen3_tts.codec_model import codec_config, load_decoder


class Qwen3TTSCodec(TransformerCodec):
    """The decoder of the checkpoint's ``speech_tokenizer``. All of a frame's samples leave with it."""

    def prepare(self, progress: Callable[[str, float | None], None]) -> dict[str, Any]:
        assert self.hello.model is not None
        folder = Path(self.hello.model) / "speech_tokenizer"
        progress("loading the codec", None)
        config = codec_config(folder)
        settings = config.decoder_config
        model = load_decoder(folder, self.hello.device)
        self.sample_rate = int(config.output_sample_rate)
        self.groups = int(settings.num_quantizers)
        self.codebook_size = int(settings.codebook_size)
        self.assemble(
            lambda codes: model.quantizer.decode(codes.transpose(1, 2)),
            model.pre_transformer,
            [*model.upsample, *model.decoder],
            before=[model.pre_conv],
        )
        assert self.samples_per_frame == config.decode_upsample_rate
        return {}
