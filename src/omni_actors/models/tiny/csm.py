"""CSM: three layers of backbone, two of depth decoder, four codebooks of 128 codes, Mimi at its real frame rate."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import CsmConfig, CsmForConditionalGeneration, CsmProcessor, EncodecFeatureExtractor

from omni_actors.models.tiny.speech import byte_tokenizer, ids_of, mimi_config, randomise_mimi, recommend
from omni_actors.models.tiny.weights import initialise

SPECIALS = ("<|begin_of_text|>", "<|end_of_text|>", "<|AUDIO|>", "<|audio_eos|>")

TEMPLATE = """
{%- for message in messages %}
{%- if not (message["role"] | string).isdigit() %}{{ raise_exception("a role is a speaker's number") }}{% endif %}
{{- bos_token ~ "[" ~ message["role"] ~ "]" }}
{%- for part in message["content"] if part["type"] == "text" %}{{ part["text"] }}{% endfor %}
{{- eos_token }}
{%- for part in message["content"] if part["type"] == "audio" %}{{ "<|AUDIO|><|audio_eos|>" }}{% endfor %}
{%- endfor %}"""

WIDTH, CODEBOOKS, CODES = 32, 4, 128


def write(folder: Path, seed: int) -> None:
    begin, end, audio, audio_end = SPECIALS
    tokenizer = byte_tokenizer(SPECIALS, bos_token=begin, eos_token=end, pad_token=audio)
    begin_id, audio_id, audio_end_id = ids_of(tokenizer, (begin, audio, audio_end))
    layers = {
        "hidden_size": WIDTH,
        "intermediate_size": 2 * WIDTH,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": WIDTH // 2,
        "num_codebooks": CODEBOOKS,
        "vocab_size": CODES,
    }
    config = CsmConfig(
        architectures=["CsmForConditionalGeneration"],
        **layers,
        num_hidden_layers=3,
        max_position_embeddings=1024,
        text_vocab_size=len(tokenizer),
        bos_token_id=begin_id,
        pad_token_id=audio_id,
        eos_token_id=None,
        audio_token_id=audio_id,
        audio_eos_token_id=audio_end_id,
        codebook_eos_token_id=0,
        codebook_pad_token_id=CODES - 1,
        codec_config=mimi_config(CODEBOOKS, CODES),
        depth_decoder_config={
            **layers,
            "num_hidden_layers": 2,
            "backbone_hidden_size": WIDTH,
            "max_position_embeddings": CODEBOOKS + 1,
        },
    )
    model = CsmForConditionalGeneration(config).eval()
    # Stacked heads [codebook, width, code]: their fan-in is the width alone.
    initialise(model, seed, {"lm_head.*": 2.0, "*codebooks_head.weight": 2.0 * CODES**0.5})
    randomise_mimi(model.codec_model, seed)
    with torch.no_grad():
        model.lm_head.weight[config.codebook_eos_token_id] = 0  # an end comes seldom: it takes all codebooks
    recommend(model.generation_config, do_sample=True, temperature=0.9, top_k=50, max_new_tokens=125)
    recommend(model.depth_decoder.generation_config, do_sample=True, temperature=0.9, top_k=50)
    model.save_pretrained(folder)
    extractor = EncodecFeatureExtractor(feature_size=1, sampling_rate=24_000)
    CsmProcessor(extractor, tokenizer, chat_template=TEMPLATE).save_pretrained(folder)
