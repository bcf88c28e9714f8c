"""The model code of the package ``qwen-tts-hf``, without the rest of that package.

Importing ``qwen_tts`` itself would import librosa, torchaudio, sox and a web interface, for a handful of modules with
networks. Here only the modules with networks are loaded, from the installed files, under a private package name: a
program that uses ``qwen_tts`` as well finds that package, and transformers, unchanged. Two things are provided:

* ``librosa.filters.mel``, the only use of librosa: where librosa is not installed, transformers' filter bank with the
  same (Slaney's) scale and norm replaces the function while the module is imported;
* the rotary initialiser ``default``, missing from the table of transformers 5: the modules get a table that has the
  initialiser, and transformers' own table is not changed.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from transformers.audio_utils import mel_filter_bank
from transformers.utils import logging

from omni_actors.protocol.errors import ErrorInfo, OmniError

DISTRIBUTION = "qwen-tts-hf"

_ROOT = "_omni_actors_qwen_tts"
_PACKAGES = ("", ".core", ".core.models", ".core.tokenizer_12hz", ".inference")


@dataclass(frozen=True, slots=True)
class Package:
    """The classes used here, by their names in the package."""

    config: Any
    """``Qwen3TTSConfig``."""
    model: Any
    """``Qwen3TTSForConditionalGeneration``: all but the codec."""
    talker: Any
    """``Qwen3TTSTalkerForConditionalGeneration``, with its code predictor."""
    talker_rotary: Any
    predictor_rotary: Any
    """``Qwen3TTSTalkerRotaryEmbedding`` and ``Qwen3TTSRotaryEmbedding``."""
    speaker_encoder: Any
    """``Qwen3TTSSpeakerEncoder``, which ``base`` models have."""
    codec_config: Any
    """``Qwen3TTSTokenizerV2Config``."""
    codec_decoder: Any
    """``Qwen3TTSTokenizerV2Decoder``: the 12 Hz codec's decoder. Its encoder is a Mimi: transformers has the class."""
    mel_spectrogram: Any
    """What the speaker encoder hears."""
    prepare: Any
    """``prepare(model)``: computes the rotary buffers, which are in no checkpoint, after the weights are loaded."""


@cache
def package() -> Package:
    """Load the package's classes. Raises :class:`OmniError` when ``qwen-tts-hf`` is not installed."""
    spec = importlib.util.find_spec("qwen_tts")  # finds, does not import
    if spec is None or spec.origin is None:
        raise OmniError(
            ErrorInfo(
                message=f"Qwen3-TTS needs its model code: pip install --no-deps {DISTRIBUTION}",
                code="missing_package",
                status=500,
            )
        )
    folder = Path(spec.origin).parent
    for name in _PACKAGES:
        module = ModuleType(_ROOT + name)
        module.__path__ = [str(folder.joinpath(*name.split(".")[1:]))]
        sys.modules[_ROOT + name] = module
    # The modelling module imports the inference wrapper of the codec for its from_pretrained, which is not used here.
    wrapper = ModuleType(f"{_ROOT}.inference.qwen3_tts_tokenizer")
    vars(wrapper)["Qwen3TTSTokenizer"] = None
    sys.modules[wrapper.__name__] = wrapper
    with _librosa():
        modelling = importlib.import_module(f"{_ROOT}.core.models.modeling_qwen3_tts")
    configuration = importlib.import_module(f"{_ROOT}.core.models.configuration_qwen3_tts")
    codec = importlib.import_module(f"{_ROOT}.core.tokenizer_12hz.modeling_qwen3_tts_tokenizer_v2")
    compatibility = importlib.import_module(f"{_ROOT}._transformers_compat")
    for module in (modelling, codec):
        ours = {"default": vars(compatibility)["_default_rope_parameters"], **vars(module)["ROPE_INIT_FUNCTIONS"]}
        vars(module)["ROPE_INIT_FUNCTIONS"] = ours

    return Package(
        configuration.Qwen3TTSConfig,
        modelling.Qwen3TTSForConditionalGeneration,
        modelling.Qwen3TTSTalkerForConditionalGeneration,
        modelling.Qwen3TTSTalkerRotaryEmbedding,
        modelling.Qwen3TTSRotaryEmbedding,
        modelling.Qwen3TTSSpeakerEncoder,
        codec.Qwen3TTSTokenizerV2Config,
        codec.Qwen3TTSTokenizerV2Decoder,
        modelling.mel_spectrogram,
        compatibility.restore_rope_buffers,
    )


def config_of(folder: Path) -> Any:
    """Return the ``Qwen3TTSConfig`` of a checkpoint, whose rotary settings have names older than transformers 5's."""
    settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return package().config(**settings)


@contextmanager
def quiet() -> Iterator[None]:
    """Silence transformers' warning about a folder whose model type transformers does not know."""
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)


def mel_filters(sr: int, n_fft: int, n_mels: int, fmin: float, fmax: float) -> np.ndarray[Any, Any]:
    """Return the result of Return the result of ``librosa.filters.mel`` with its defaults: float32 [n_mels, 1 + n_fft /
    2]."""
    bank = mel_filter_bank(1 + n_fft // 2, n_mels, fmin, fmax, sr, norm="slaney", mel_scale="slaney")
    filters: np.ndarray[Any, Any] = np.ascontiguousarray(bank.T, dtype=np.float32)
    return filters


@contextmanager
def _librosa() -> Iterator[None]:
    """Make ``from librosa.filters import mel`` work inside the block."""
    if importlib.util.find_spec("librosa") is not None:
        yield
        return
    parent, filters = ModuleType("librosa"), ModuleType("librosa.filters")
    parent.__path__ = []
    vars(filters)["mel"] = mel_filters
    names = {"librosa": parent, "librosa.filters": filters}
    sys.modules.update(names)
    try:
        yield
    finally:
        for name in names:
            del sys.modules[name]
