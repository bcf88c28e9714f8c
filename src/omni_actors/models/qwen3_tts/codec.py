"""The codec stage: frames to sound."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from omni_actors.models.common.codec_memory import RememberingDecoder
from omni_actors.models.common.convolutions import reach
from omni_actors.models.qwen3_tts.codec_model import codec_config, load_decoder
from omni_actors.worker.engines.codec import CodecAdapter


class Qwen3TTSCodec(CodecAdapter):
    """The decoder looks back only: a transformer over frames in a sliding window, then convolutions. It remembers, or a
    window of frames is run through the transformer whole, and through the convolutions with just the few frames that
    these see."""

    def prepare(self, progress: Callable[[str, float | None], None]) -> dict[str, Any]:
        assert self.hello.model is not None
        folder = Path(self.hello.model) / "speech_tokenizer"
        progress("loading the codec", None)
        config = codec_config(folder)
        settings = config.decoder_config
        self._model = load_decoder(folder, self.hello.device)
        self.sample_rate = int(config.output_sample_rate)
        self.samples_per_frame = int(config.decode_upsample_rate)
        self.groups = int(settings.num_quantizers)
        self.codebook_size = int(settings.codebook_size)
        self._sound_context = _sound_context(self._model, self.samples_per_frame)
        attended = settings.num_hidden_layers * (settings.sliding_window - 1)
        _, before, _ = reach(self._model.pre_conv, causal=True)
        self.sufficient_context = attended + before + self._sound_context
        model = self._model
        self._remembering = RememberingDecoder(
            lambda codes: model.quantizer.decode(codes.transpose(1, 2)),
            model.pre_transformer,
            [*model.upsample, *model.decoder],
            before=[model.pre_conv],
        )
        return {}

    def decode(self, codes: torch.Tensor) -> torch.Tensor:
        begins = torch.zeros(len(codes), dtype=torch.int64, device=codes.device)
        return self.decode_after(codes, 0, begins)

    def decode_after(self, codes: torch.Tensor, context: int, begins: torch.Tensor) -> torch.Tensor:
        model = self._model
        hidden = model.pre_conv(model.quantizer.decode(codes.transpose(1, 2))).transpose(1, 2)
        positions = begins.unsqueeze(1) + torch.arange(codes.shape[1], device=codes.device)
        hidden = model.pre_transformer(inputs_embeds=hidden, position_ids=positions).last_hidden_state
        skipped = max(0, context - self._sound_context)
        sound = hidden[:, skipped:].transpose(1, 2)
        for blocks in model.upsample:
            for block in blocks:
                sound = block(sound)
        for block in model.decoder:
            sound = block(sound)
        samples: torch.Tensor = sound[:, 0, (context - skipped) * self.samples_per_frame :].clamp(-1, 1)
        return samples

    def remember(self) -> torch.Tensor:
        return self._remembering.fresh(self.groups, self.hello.device)

    def decode_next(
        self, codes: torch.Tensor, begins: torch.Tensor, memories: torch.Tensor, fresh: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return self._remembering(codes, begins, memories, fresh)


def _sound_context(model: Any, samples_per_frame: int) -> int:
    """Frames before a frame that have a part in its samples, once the transformer has run."""
    stack = torch.nn.ModuleList([*model.upsample, *model.decoder])
    rate, before, _ = reach(stack, causal=True)
    assert rate == samples_per_frame
    return before
