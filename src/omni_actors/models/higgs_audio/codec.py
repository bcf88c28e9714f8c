"""The codec's decoder: codebooks, a projection, and DAC's decoder with small changes.

transformers' class of the whole codec cannot be imported without torchaudio, though only the encoder uses torchaudio.
The decoder is therefore built here from transformers' DAC. The weights keep their names from the checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers import HiggsAudioV2TokenizerConfig
from transformers.models.dac.modeling_dac import DacDecoder

from omni_actors.models.common.convolutions import reach
from omni_actors.models.common.load import read_weights
from omni_actors.models.common.processors import audio_tokenizer_folder
from omni_actors.models.common.speech import folder_of, prepare_torch
from omni_actors.protocol.errors import ErrorInfo, OmniError
from omni_actors.worker.engines.oneshot.codec import CodecAdapter


class Codec(CodecAdapter):
    """The decoder looks a few frames around each frame, to both sides."""

    paddable = False

    def prepare(self, progress: Callable[[str, float | None], None]) -> dict[str, Any]:
        prepare_torch(self.hello)
        progress("loading the codec", None)
        folder = audio_tokenizer_folder(folder_of(self.hello))
        config = HiggsAudioV2TokenizerConfig.from_pretrained(folder, local_files_only=True)
        decoder = Decoder(config)
        wanted = decoder.state_dict().keys()
        weights = {name: weight for name, weight in read_weights(folder, "").items() if name in wanted}
        if missing := wanted - weights.keys():
            message = f"{folder} lacks {len(missing)} weights of the codec's decoder, {min(missing)} among them"
            raise OmniError(ErrorInfo(message=message, code="bad_model", status=500))
        decoder.load_state_dict(weights)
        self._decoder = decoder.to(self.hello.device, getattr(torch, self.hello.dtype)).eval()
        self.sample_rate = config.sample_rate
        self.groups, self.codebook_size = config.num_quantizers, config.codebook_size
        self.samples_per_frame, self.sufficient_context, behind = reach(decoder.acoustic_decoder, causal=False)
        self.unsettled = behind * self.samples_per_frame
        return {}

    def decode(self, codes: torch.Tensor) -> torch.Tensor:
        samples: torch.Tensor = self._decoder(codes)
        return samples


class Decoder(nn.Module):
    """Codes int64 [batch, frames, codebooks] → samples [batch, n]."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.quantizer = _Quantizer(config)
        self.fc2 = nn.Linear(config.hidden_size, config.acoustic_model_config.hidden_size)
        self.acoustic_decoder = DacDecoder(config.acoustic_model_config)
        self.acoustic_decoder.tanh = nn.Identity()
        for module in self.acoustic_decoder.modules():
            if isinstance(module, nn.ConvTranspose1d):
                module.output_padding = (module.stride[0] % 2,)  # a frame is whole samples at odd strides too

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        hidden = self.fc2(self.quantizer(codes))
        samples: torch.Tensor = self.acoustic_decoder(hidden.transpose(1, 2))
        return samples[:, 0]


class _Quantizer(nn.Module):
    """Residual codebooks: a frame is the sum of the vectors of its codes."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.quantizers = nn.ModuleList(_Codebook(config) for _ in range(config.num_quantizers))

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        parts = [book(codes[..., number]) for number, book in enumerate(self.quantizers)]
        return torch.stack(parts).sum(dim=0)


class _Codebook(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.codebook = nn.Module()
        self.codebook.register_buffer("embed", torch.zeros(config.codebook_size, config.codebook_dim))
        self.project_out = nn.Linear(config.codebook_dim, config.hidden_size)

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        projected: torch.Tensor = self.project_out(nn.functional.embedding(codes, self.codebook.embed))
        return projected
