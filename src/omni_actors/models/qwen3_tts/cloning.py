"""Voice cloning: the talker's input from a clip of a voice, an embedding of its timbre and its codec frames."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from omni_actors.models.common.load import read_weights
from omni_actors.models.common.speech import Clip, Samples
from omni_actors.models.qwen3_tts.codec_model import CodecEncoder
from omni_actors.models.qwen3_tts.package import package
from omni_actors.protocol.errors import invalid_request
from omni_actors.worker.byte_cache import ByteCache

MIN_SECONDS = 1.0
"""Of a shorter clip nothing reliable can be heard."""

_MEL = {"n_fft": 1024, "num_mels": 128, "hop_size": 256, "win_size": 1024, "fmin": 0, "fmax": 12000}
"""Of ``Qwen3TTSForConditionalGeneration.extract_speaker_embedding``."""


@dataclass(slots=True)
class Voice:
    """A clip of a voice as the model's input. ``samples`` are at the model's rate; ``codes`` int64 [frames, groups] are
    made on first use."""

    samples: Samples
    timbre: torch.Tensor
    codes: torch.Tensor | None = None

    @property
    def nbytes(self) -> int:
        codes = 0 if self.codes is None else self.codes.nbytes
        return int(self.samples.nbytes + self.timbre.nbytes + codes)


class Cloner:
    """Hears clips. The same clip is heard once, while it stays in a cache of ``cache_bytes``."""

    def __init__(self, folder: Path, config: Any, dtype: torch.dtype, device: str, cache_bytes: int) -> None:
        self._rate = int(config.speaker_encoder_config.sample_rate)
        self._dtype, self._device = dtype, device
        self._speaker_encoder = _speaker_encoder(folder, config, dtype, device)
        self._codec = CodecEncoder(folder / "speech_tokenizer", device)
        self.cache: ByteCache[bytes, Voice] = ByteCache(cache_bytes)

    def hear(self, clip: Clip, *, codes: bool) -> Voice:
        """Return the clip's voice, with its codec frames if ``codes``. Raises 400 for a clip below the least length."""
        if len(clip.samples) < MIN_SECONDS * clip.rate:
            raise invalid_request(f"A reference clip has at least {MIN_SECONDS:g} s.", param="ref_audio")
        digest = hashlib.blake2b(clip.samples.tobytes(), digest_size=16, key=str(clip.rate).encode()).digest()
        voice = self.cache.get(digest)
        if voice is None:
            samples = np.array(clip.at(self._rate))  # the clip's own may be another's memory soon
            voice = Voice(samples, self._timbre(samples))
        if codes and voice.codes is None:
            voice.codes = self._codec.encode(Clip(voice.samples, self._rate).at(self._codec.sample_rate))
        self.cache.put(digest, voice, voice.nbytes)
        return voice

    @torch.inference_mode()
    def _timbre(self, samples: Samples) -> torch.Tensor:
        """[width] of the talker."""
        heard = torch.from_numpy(samples).to(self._device).clamp(-1, 1).unsqueeze(0)
        mel = package().mel_spectrogram(heard, sampling_rate=self._rate, **_MEL).transpose(1, 2)
        timbre: torch.Tensor = self._speaker_encoder(mel.to(self._dtype))[0]
        return timbre


def _speaker_encoder(folder: Path, config: Any, dtype: torch.dtype, device: str) -> Any:
    module = package().speaker_encoder(config.speaker_encoder_config)
    weights = read_weights(folder, "speaker_encoder.")
    module.load_state_dict(weights)
    return module.to(device, dtype).eval()
