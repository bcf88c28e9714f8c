"""Higgs Audio v2: three layers with both feed-forwards, four codebooks of 64 codes, a codec in ``audio_tokenizer``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from transformers import (
    DacFeatureExtractor,
    HiggsAudioV2Config,
    HiggsAudioV2ForConditionalGeneration,
    HiggsAudioV2Processor,
    HiggsAudioV2TokenizerConfig,
)

from omni_actors.models.tiny.speech import byte_tokenizer, ids_of, name_audio_tokenizer, recommend, soften
from omni_actors.models.tiny.weights import initialise, silence

AUDIO, AUDIO_BEGIN, AUDIO_END, DELAY = (
    "<|AUDIO_OUT|>",
    "<|audio_out_bos|>",
    "<|audio_eos|>",
    "<|reserved_special_token_6|>",
)
SPECIALS = (
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|eot_id|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|scene_desc_start|>",
    "<|scene_desc_end|>",
    AUDIO,
    AUDIO_BEGIN,
    AUDIO_END,
    DELAY,
)

TEMPLATE = """
{%- set scenes = messages | selectattr("role", "equalto", "scene") | list %}
{{- bos_token }}
{%- for message in messages if message["role"] != "scene" %}
{{- "<|start_header_id|>" ~ message["role"] ~ "<|end_header_id|>\\n\\n" }}
{%- for part in message["content"] %}
{%- if part["type"] == "text" %}{{ part["text"] }}{% endif %}
{%- if part["type"] == "audio" %}{{ "<|audio_out_bos|><|AUDIO_OUT|><|audio_eos|>" }}{% endif %}
{%- endfor %}
{%- if message["role"] == "system" %}
{%- for scene in scenes %}{% for part in scene["content"] %}
{{- "\\n\\n<|scene_desc_start|>\\n" ~ part["text"] ~ "\\n<|scene_desc_end|>" }}
{%- endfor %}{% endfor %}
{%- endif %}
{{- "<|eot_id|>" }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- "<|start_header_id|>assistant<|end_header_id|>\\n\\n<|audio_out_bos|>" }}
{%- endif %}"""

WIDTH, CODEBOOKS, CODES = 32, 4, 64


def write(folder: Path, seed: int) -> None:
    tokenizer = byte_tokenizer(SPECIALS, bos_token=SPECIALS[0], eos_token=SPECIALS[2], pad_token=SPECIALS[1])
    ids = dict(zip(SPECIALS, ids_of(tokenizer, SPECIALS), strict=True))
    config = HiggsAudioV2Config(
        architectures=["HiggsAudioV2ForConditionalGeneration"],
        vocab_size=len(tokenizer),
        hidden_size=WIDTH,
        intermediate_size=2 * WIDTH,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=WIDTH // 2,
        max_position_embeddings=2048,
        bos_token_id=ids["<|begin_of_text|>"],
        eos_token_id=ids["<|eot_id|>"],
        pad_token_id=ids["<|end_of_text|>"],
        audio_token_id=ids[AUDIO],
        audio_bos_token_id=ids[AUDIO_BEGIN],
        audio_delay_token_id=ids[DELAY],
        num_codebooks=CODEBOOKS,
        codebook_size=CODES + 2,
        audio_stream_bos_id=CODES,
        audio_stream_eos_id=CODES + 1,
    )
    model = HiggsAudioV2ForConditionalGeneration(config).eval()
    initialise(model, seed, {"*embed_audio*": 1 / CODEBOOKS**0.5, "audio_lm_head.*": 2.0})
    marks = [book * (CODES + 2) + mark for book in range(CODEBOOKS) for mark in (CODES, CODES + 1)]
    silence(model.audio_lm_head, marks)  # an end comes seldom
    recommend(
        model.generation_config,
        do_sample=True,
        temperature=1.0,
        top_k=50,
        top_p=0.95,
        max_new_tokens=512,
        ras_win_len=7,
        ras_win_max_num_repeat=2,
    )
    model.save_pretrained(folder)
    codec = _codec(seed)
    codec.save_pretrained(folder / "audio_tokenizer")
    extractor = DacFeatureExtractor(sampling_rate=codec.config.sample_rate, hop_length=codec.config.hop_length)
    processor = HiggsAudioV2Processor(
        extractor, tokenizer, None, chat_template=TEMPLATE, audio_stream_bos_id=CODES, audio_stream_eos_id=CODES + 1
    )
    processor.save_pretrained(folder)
    name_audio_tokenizer(folder, codec)


def codec_class() -> Any:
    """Return the codec's class. Its module imports torchaudio for the resampling of input; without torchaudio an empty
    module is imported in its place, and encoding does not work."""
    with _importable("torchaudio"):
        module = import_module("transformers.models.higgs_audio_v2_tokenizer.modeling_higgs_audio_v2_tokenizer")
    return module.HiggsAudioV2TokenizerModel


@contextmanager
def _importable(name: str) -> Iterator[None]:
    if find_spec(name) is not None:
        yield
        return
    empty = ModuleType(name)
    empty.__spec__ = ModuleSpec(name, None)
    sys.modules[name] = empty
    try:
        yield
    finally:
        del sys.modules[name]


def _codec(seed: int) -> Any:
    ratios = [8, 5, 4, 2, 3]  # 25 frames per second of 24 kHz
    config = HiggsAudioV2TokenizerConfig(
        target_bandwidths=[0.6],  # four codebooks of 64 codes
        codebook_size=CODES,
        codebook_dim=8,
        acoustic_model_config={
            "encoder_hidden_size": 2,
            "decoder_hidden_size": 32,
            "downsampling_ratios": ratios,
            "upsampling_ratios": ratios,
            "hidden_size": 16,
        },
        semantic_model_config={
            "hidden_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "intermediate_size": 32,
            "conv_dim": [8] * 7,
            "num_conv_pos_embeddings": 16,
            "num_conv_pos_embedding_groups": 2,
        },
    )
    model = codec_class()(config).eval()
    initialise(model, seed, {"*res_unit*": 0.4})
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("alpha"):
                parameter.fill_(1.0)
        for book in model.quantizer.quantizers:
            book.codebook.embed.copy_(torch.empty(CODES, config.codebook_dim).normal_(generator=generator))
    soften(model.acoustic_decoder.conv2, 0.1)
    return model
