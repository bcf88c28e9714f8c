"""Dia: two layers of encoder, three of decoder, nine codebooks at their real delays, DAC in ``audio_tokenizer``."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import (
    DacConfig,
    DacModel,
    DiaConfig,
    DiaFeatureExtractor,
    DiaForConditionalGeneration,
    DiaProcessor,
    DiaTokenizer,
)

from omni_actors.models.tiny.speech import name_audio_tokenizer, recommend, soften
from omni_actors.models.tiny.weights import initialise

WIDTH, CODEBOOKS, CODES = 32, 9, 1024


def write(folder: Path, seed: int) -> None:
    heads = {"num_attention_heads": 2, "head_dim": WIDTH // 2, "intermediate_size": 2 * WIDTH, "hidden_size": WIDTH}
    config = DiaConfig(
        architectures=["DiaForConditionalGeneration"],
        encoder_config={**heads, "num_hidden_layers": 2, "num_key_value_heads": 2, "max_position_embeddings": 1024},
        decoder_config={
            **heads,
            "num_hidden_layers": 3,
            "num_key_value_heads": 1,
            "cross_num_attention_heads": 2,
            "cross_num_key_value_heads": 2,
            "cross_head_dim": WIDTH // 2,
            "cross_hidden_size": WIDTH,
            "num_channels": CODEBOOKS,
            "vocab_size": CODES + 4,
            "max_position_embeddings": 1024,
        },
    )
    model = DiaForConditionalGeneration(config).eval()
    initialise(model, seed, {"*embed*": 1 / CODEBOOKS**0.5, "logits_dense.*": 2.0})
    recommend(
        model.generation_config,
        do_sample=True,
        temperature=1.8,
        top_p=0.9,
        top_k=45,
        guidance_scale=3.0,
        max_length=512,
    )
    model.save_pretrained(folder)
    codec = _codec(seed)
    codec.save_pretrained(folder / "audio_tokenizer")
    extractor = DiaFeatureExtractor(sampling_rate=codec.config.sampling_rate, hop_length=codec.config.hop_length)
    DiaProcessor(extractor, DiaTokenizer(), codec).save_pretrained(folder)
    name_audio_tokenizer(folder, codec)


def _codec(seed: int) -> DacModel:
    config = DacConfig(
        encoder_hidden_size=4,
        decoder_hidden_size=32,
        downsampling_ratios=[2, 4, 8, 8],
        n_codebooks=CODEBOOKS,
        codebook_size=CODES,
        codebook_dim=4,
        sampling_rate=44_100,
    )
    model = DacModel(config).eval()
    initialise(model, seed, {"*res_unit*": 0.4})
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("alpha"):
                parameter.fill_(1.0)
    soften(model.decoder.conv2, 0.1)
    return model
