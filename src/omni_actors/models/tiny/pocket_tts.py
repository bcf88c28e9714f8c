"""Pocket TTS: three layers, a flow head, latents of eight numbers, the codec in ``audio_tokenizer``, two voices."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import (
    PocketTTSAudioTokenizerConfig,
    PocketTTSAudioTokenizerModel,
    PocketTTSConfig,
    PocketTTSFeatureExtractor,
    PocketTTSForConditionalGeneration,
    PocketTTSProcessor,
)

from omni_actors.models.tiny.speech import byte_tokenizer, ids_of, mimi_config, name_audio_tokenizer, recommend, soften
from omni_actors.models.tiny.weights import initialise

SPECIALS = {
    "audio_prompt_token": "<voice>",
    "audio_latent_token": "<latent>",
    "audio_prompt_bos_token": "<voice_begin>",
    "audio_bos_token": "<audio_begin>",
}
PAD = "<pad>"

TEMPLATE = """
{%- for message in messages %}
{%- for part in message["content"] if part["type"] == "audio" %}{{ "<voice_begin><voice>" }}{% endfor %}
{%- for part in message["content"] if part["type"] == "text" %}{{ part["text"] | trim }}{% endfor %}
{%- endfor %}{{ "<audio_begin>" }}"""

WIDTH, LATENT = 32, 8
VOICES = ("alba", "jean")


def write(folder: Path, seed: int) -> None:
    tokenizer = byte_tokenizer((PAD, *SPECIALS.values()), pad_token=PAD, extra_special_tokens=SPECIALS)
    pad, voice, latent, voice_begin, audio_begin = ids_of(tokenizer, (PAD, *SPECIALS.values()))
    config = PocketTTSConfig(
        architectures=["PocketTTSForConditionalGeneration"],
        vocab_size=len(tokenizer),
        hidden_size=WIDTH,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=2 * WIDTH,
        max_position_embeddings=1024,
        latent_dim=LATENT,
        pad_token_id=pad,
        audio_prompt_token_id=voice,
        audio_latent_token_id=latent,
        audio_prompt_bos_token_id=voice_begin,
        audio_bos_token_id=audio_begin,
        flow_head_config={
            "hidden_size": WIDTH,
            "num_hidden_layers": 2,
            "latent_dim": LATENT,
            "condition_dim": WIDTH,
            "frequency_embedding_size": 32,
        },
    )
    model = PocketTTSForConditionalGeneration(config).eval()
    initialise(model, seed, {"eos_head.weight": 2.0})
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        model.eos_head.bias.fill_(-6.5)  # with the threshold of -4, an end comes after some dozens of frames
        model.latent_mean.copy_(0.1 * torch.randn(LATENT, generator=generator))
        model.latent_std.copy_(1 + 0.1 * torch.rand(LATENT, generator=generator))
    recommend(
        model.generation_config,
        do_sample=True,
        temperature=0.7,
        return_dict_in_generate=True,
        num_flow_steps=2,
        eos_threshold=-4.0,
        min_frames_before_eos=6,
    )
    model.save_pretrained(folder)
    codec = _codec(seed)
    codec.save_pretrained(folder / "audio_tokenizer")
    extractor = PocketTTSFeatureExtractor(frame_size=codec.config.frame_size)
    PocketTTSProcessor(extractor, tokenizer, audio_tokenizer=codec, chat_template=TEMPLATE).save_pretrained(folder)
    name_audio_tokenizer(folder, codec)
    (folder / "voices").mkdir(exist_ok=True)
    for name in VOICES:
        frames = torch.randn(12, LATENT, generator=generator)
        save_file({"audio_prompt_latents": frames}, folder / "voices" / f"{name}.safetensors")


def _codec(seed: int) -> PocketTTSAudioTokenizerModel:
    quantized = ("codebook_size", "codebook_dim", "num_quantizers", "num_semantic_quantizers")
    sizes = {
        name: value
        for name, value in mimi_config(1, 1).items()
        if name not in (*quantized, "vector_quantization_hidden_dimension")
    }
    config = PocketTTSAudioTokenizerConfig(**sizes, latent_dim=LATENT)
    model = PocketTTSAudioTokenizerModel(config).eval()
    initialise(model, seed, {})
    soften(model.decoder.decoder_seanet.layers[-1].conv, 0.15)
    return model
