"""Tiny Qwen3-TTS (12 Hz) checkpoints, one of each kind: named voices, voices designed by a description, and the base
model, which clones and so has a speaker encoder. The codec lies in ``speech_tokenizer``, as in the real checkpoints."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import EncodecFeatureExtractor

from omni_actors.models.qwen3_tts.codec_model import checkpoint_name, make_encoder
from omni_actors.models.qwen3_tts.package import config_of, package
from omni_actors.models.tiny.qwen3_omni import SPECIALS
from omni_actors.models.tiny.text import tokenizer
from omni_actors.models.tiny.weights import initialise

TEXT_VOCABULARY = 704
HIDDEN = 64
TEXT_HIDDEN = 48
CODES = 64
GROUPS = 4
ENCODER_GROUPS = 6
"""Codebooks that the codec's encoder has: more than are used, as in the real one (32 of which 16)."""

# The talker's vocabulary: the codes of the first group, then 1024 places for marks, voices and languages. The offsets
# are the checkpoint's.
MARKS = {
    "codec_pad_id": CODES + 100,
    "codec_bos_id": CODES + 101,
    "codec_eos_token_id": CODES + 102,
    "codec_think_id": CODES + 106,
    "codec_nothink_id": CODES + 107,
    "codec_think_bos_id": CODES + 108,
    "codec_think_eos_id": CODES + 109,
}
LANGUAGES = {"chinese": CODES + 7, "english": CODES + 2, "german": CODES + 5, "sichuan_dialect": CODES + 14}
VOICES = {"vivian": CODES + 1017, "ryan": CODES + 1013, "eric": CODES + 827}
DIALECTS: dict[str, str | bool] = {"vivian": False, "ryan": False, "eric": "sichuan_dialect"}

ROPE = {"rope_type": "default", "mrope_section": [4, 2, 2], "interleaved": True}
TALKER_GAINS = {
    "*layers*": 1.2,
    "*q_norm*": 2.0,
    "*codec_head*": 3.0,
    "*lm_head*": 3.0,
    "speaker_encoder*": 1.5,
    "speaker_encoder.fc*": 0.4,
}
ENCODER_GAINS = {"*layer_scale*": 30.0}  # constructed as 0.01: the transformer would add next to nothing
DECODER_GAINS = {
    "*embedding_sum": 4.0,
    "*layer_scale*": 30.0,
    "*gamma": 3e5,
    "decoder.[1-4].*": 0.6,
    "decoder.6.*": 0.1,
}
GENERATION = {
    "do_sample": True,
    "temperature": 0.9,
    "top_p": 1.0,
    "top_k": 50,
    "repetition_penalty": 1.05,
    "subtalker_dosample": True,
    "subtalker_temperature": 0.9,
    "subtalker_top_p": 1.0,
    "subtalker_top_k": 50,
    "max_new_tokens": 8192,
}


@dataclass(frozen=True, slots=True)
class Variant:
    """One kind of checkpoint, named by its ``tts_model_type``."""

    kind: str

    def write(self, folder: Path, seed: int) -> None:
        """Write the checkpoint into `folder`."""
        words = tokenizer(SPECIALS, {"eos_token": "<|im_end|>"})
        assert len(words) <= TEXT_VOCABULARY
        words.save_pretrained(folder)
        ids = {name: words.convert_tokens_to_ids(name) for name in SPECIALS}
        with torch.random.fork_rng(devices=()):
            _write_talker(folder, seed, settings(self.kind, ids))
            _write_codec(folder / "speech_tokenizer", seed)
        _write(folder / "generation_config.json", GENERATION)
        _write(folder / "preprocessor_config.json", {"processor_class": "Qwen3TTSProcessor", "padding_side": "left"})


CUSTOM_VOICE, VOICE_DESIGN, BASE = Variant("custom_voice"), Variant("voice_design"), Variant("base")


def settings(kind: str, ids: dict[str, int]) -> dict[str, Any]:
    """Return ``config.json``; `ids` are those of the text's special tokens."""
    layers: dict[str, Any] = {
        "hidden_size": HIDDEN,
        "intermediate_size": 128,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "rope_theta": 1000000,
        "num_code_groups": GROUPS,
    }
    talker = {
        **layers,
        **MARKS,
        "vocab_size": CODES + 1024,
        "text_hidden_size": TEXT_HIDDEN,
        "text_vocab_size": TEXT_VOCABULARY,
        "pad_token_id": None,
        "rope_scaling": ROPE,
        "position_id_per_seconds": 13,
        "spk_id": VOICES if kind == "custom_voice" else {},
        "spk_is_dialect": DIALECTS if kind == "custom_voice" else {},
        "codec_language_id": LANGUAGES,
        # Another width than the talker's, so that there is a projection between them, as in the real 1.7B.
        "code_predictor_config": {**layers, "vocab_size": CODES, "hidden_size": 32, "intermediate_size": 64},
    }
    speaker = {
        "enc_dim": HIDDEN,
        "enc_channels": [16, 16, 16, 16, 48],
        "enc_attention_channels": 16,
        "enc_se_channels": 16,
    }
    return {
        "architectures": ["Qwen3TTSForConditionalGeneration"],
        "model_type": "qwen3_tts",
        "tts_model_type": kind,
        "tts_model_size": "1b7",
        "tokenizer_type": "qwen3_tts_tokenizer_12hz",
        "im_start_token_id": ids["<|im_start|>"],
        "im_end_token_id": ids["<|im_end|>"],
        "tts_pad_token_id": ids["<tts_pad>"],
        "tts_bos_token_id": ids["<tts_text_bos>"],
        "tts_eos_token_id": ids["<tts_text_eod>"],
        "talker_config": talker,
        "speaker_encoder_config": speaker,
    }


def _write_talker(folder: Path, seed: int, config: dict[str, Any]) -> None:
    _write(folder / "config.json", config)
    model = package().model(config_of(folder))
    initialise(model, seed, TALKER_GAINS)
    _save(folder, model.state_dict(), config)


def _write_codec(folder: Path, seed: int) -> None:
    encoder_settings: dict[str, Any] = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_filters": 4,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "codebook_size": CODES,
        "codebook_dim": 16,
        "vector_quantization_hidden_dimension": 16,
        "num_quantizers": ENCODER_GROUPS,
        "num_semantic_quantizers": 1,
        "upsampling_ratios": [8, 6, 5, 4],
        "upsample_groups": 32,
        "sampling_rate": 24000,
        "use_causal_conv": True,
        "sliding_window": 250,
    }
    decoder_settings: dict[str, Any] = {
        "codebook_size": CODES,
        "codebook_dim": 32,
        "hidden_size": 32,
        "latent_dim": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "num_quantizers": GROUPS,
        "sliding_window": 6,
        "decoder_dim": 32,
        "upsample_rates": [8, 5, 4, 3],
        "upsampling_ratios": [2, 2],
    }
    settings = {
        "architectures": ["Qwen3TTSTokenizerV2Model"],
        "model_type": "qwen3_tts_tokenizer_12hz",
        "encoder_config": encoder_settings,
        "decoder_config": decoder_settings,
        "encoder_valid_num_quantizers": GROUPS,
        "input_sample_rate": 24000,
        "output_sample_rate": 24000,
        "encode_downsample_rate": 1920,
        "decode_upsample_rate": 1920,
    }
    config = package().codec_config(**settings)
    encoder = make_encoder(config)
    decoder = package().codec_decoder._from_config(config.decoder_config)
    initialise(encoder, seed + 1, ENCODER_GAINS)
    initialise(decoder, seed + 2, DECODER_GAINS)
    generator = torch.Generator().manual_seed(seed + 3)
    for name, buffer in encoder.named_buffers():
        if name.endswith("embed_sum"):  # a codebook: learnt, but not by gradients
            buffer.copy_(torch.empty(buffer.shape).normal_(generator=generator))
    weights = {checkpoint_name(name): tensor for name, tensor in encoder.state_dict().items()}
    weights |= {f"decoder.{name}": tensor for name, tensor in decoder.state_dict().items()}
    _save(folder, weights, settings)
    EncodecFeatureExtractor(feature_size=1, sampling_rate=24000, return_attention_mask=True).save_pretrained(folder)


def _save(folder: Path, weights: dict[str, torch.Tensor], config: dict[str, Any]) -> None:
    """Write the files of ``save_pretrained``, which refuses the package's classes in transformers 5."""
    folder.mkdir(exist_ok=True)
    _write(folder / "config.json", config)
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, folder / "model.safetensors")


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
