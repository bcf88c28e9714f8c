"""The 12 Hz codec: sound to codes and back. Its folder is the checkpoint's ``speech_tokenizer``.

The decoder is the class of the package ``qwen-tts-hf``. The encoder is transformers' Mimi without its decoder: the
package's own subclass of Mimi cannot be built since transformers split Mimi into two halves.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import MimiConfig, MimiModel

from omni_actors.models.common.load import read_weights
from omni_actors.models.qwen3_tts.package import package

ENCODER = "encoder."

_ENCODER_NAMES = (
    ("encoder.encoder.", "encoder.encoder_seanet."),
    ("encoder.encoder_transformer.", "encoder.encoder_transformer."),
    ("encoder.downsample.", "encoder.downsample."),
    ("encoder.quantizer.", "quantizer."),
)
"""Beginnings of weights' names: in the checkpoint, and in transformers' Mimi."""


def codec_config(folder: Path) -> Any:
    """``Qwen3TTSTokenizerV2Config`` of the folder."""
    return package().codec_config(**json.loads((folder / "config.json").read_text(encoding="utf-8")))


def make_encoder(config: Any) -> Any:
    """The encoder's modules, without weights."""
    settings = config.encoder_config.to_dict() | {"decoder_config": None}
    # The checkpoint was trained with every frame seeing all before it, which Mimi's attention once did whatever its
    # config said.
    settings["sliding_window"] = settings["max_position_embeddings"]
    settings.pop("model_type", None)
    return MimiModel(MimiConfig(**settings))


def checkpoint_name(name: str) -> str:
    """The name that the checkpoint has for a weight of :func:`make_encoder`'s modules."""
    for theirs, ours in _ENCODER_NAMES:
        if name.startswith(ours):
            return theirs + name[len(ours) :]
    raise KeyError(name)


class CodecEncoder:
    """Sound at ``sample_rate`` Hz to codes [frames, groups], a frame for each ``hop`` samples or part of that."""

    def __init__(self, folder: Path, device: str) -> None:
        config = codec_config(folder)
        self.sample_rate = int(config.input_sample_rate)
        self.hop = int(config.encode_downsample_rate)
        self._groups = int(config.encoder_valid_num_quantizers)
        model = make_encoder(config)
        stored = _float32(read_weights(folder, ENCODER))
        names = {name: checkpoint_name(name).removeprefix(ENCODER) for name in model.state_dict()}
        model.load_state_dict({name: stored[theirs] for name, theirs in names.items()}, assign=True)
        self._model = model.to(device).eval()

    @torch.inference_mode()
    def encode(self, samples: np.ndarray[Any, Any]) -> torch.Tensor:
        """int64 [frames, groups], on the CPU, of float32 samples [n]."""
        values = torch.from_numpy(samples).to(self._model.device).view(1, 1, -1)
        codes = self._model.encode(values).audio_codes[0, : self._groups]
        frames = -(-len(samples) // self.hop)
        return codes[:, :frames].T.contiguous().cpu()


def load_decoder(folder: Path, device: str) -> Any:
    """``Qwen3TTSTokenizerV2Decoder`` with its weights, float32: codes [batch, groups, frames] to sound in [-1, 1]
    [batch, 1, frames * hop]."""
    parts = package()
    model = parts.codec_decoder._from_config(codec_config(folder).decoder_config)
    model.load_state_dict(_float32(read_weights(folder, "decoder.")), assign=True)
    parts.prepare(model)
    return model.to(device).eval()


def _float32(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Sound is computed in float32: rounded numbers would be heard."""
    return {name: weight.float() if weight.is_floating_point() else weight for name, weight in weights.items()}
