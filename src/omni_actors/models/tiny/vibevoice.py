"""VibeVoice: two layers of Qwen2, a diffusion head, tokenizers of sound at their real 7.5 frames per second."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import (
    VibeVoiceAcousticTokenizerFeatureExtractor,
    VibeVoiceConfig,
    VibeVoiceForConditionalGeneration,
    VibeVoiceProcessor,
)

from omni_actors.models.tiny.speech import byte_tokenizer, ids_of, recommend, soften
from omni_actors.models.tiny.weights import initialise

END, BEGIN, STOP, FRAME = "<|endoftext|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>"
SPECIALS = (END, BEGIN, STOP, FRAME)

TEMPLATE = """
{{- "Say the text with the voices of its speakers.\\n" }}
{%- for message in messages %}{% for part in message["content"] if part["type"] == "audio" %}
{%- if loop.first %}{{ " Voice input:\\n" }}{% endif %}
{{- " Speaker " ~ message["role"] ~ ":<|vision_start|><|vision_pad|><|vision_end|>\\n" }}
{%- endfor %}{% endfor %}
{{- " Text input:\\n" }}
{%- for message in messages %}{% for part in message["content"] if part["type"] == "text" %}
{{- " Speaker " ~ message["role"] ~ ": " ~ part["text"] ~ "\\n" }}
{%- endfor %}{% endfor %}
{{- " Speech output:\\n<|vision_start|>" }}"""

WIDTH, LATENT = 32, 8


def write(folder: Path, seed: int) -> None:
    tokenizer = byte_tokenizer(SPECIALS, eos_token=END, pad_token=END)
    end, begin, stop, frame = ids_of(tokenizer, SPECIALS)
    codec = {
        "hidden_size": LATENT,
        "num_filters": 2,
        "depths": [1] * 7,
        "ffn_expansion": 2,
        "layer_scale_init_value": 0.5,
    }
    config = VibeVoiceConfig(
        architectures=["VibeVoiceForConditionalGeneration"],
        audio_config={"model_type": "vibevoice_acoustic_tokenizer", **codec},
        semantic_model_config={"model_type": "vibevoice_acoustic_tokenizer_encoder", **codec},
        text_config={
            "model_type": "qwen2",
            "vocab_size": len(tokenizer),
            "hidden_size": WIDTH,
            "intermediate_size": 2 * WIDTH,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "max_position_embeddings": 2048,
        },
        diffusion_head_config={"num_hidden_layers": 2, "intermediate_size": 2 * WIDTH, "frequency_embedding_size": 32},
        pad_token_id=end,
        eos_token_id=end,
        audio_bos_token_id=begin,
        audio_eos_token_id=stop,
        audio_token_id=frame,
    )
    model = VibeVoiceForConditionalGeneration(config).eval()
    initialise(model, seed, {})
    _lead(model, seed)
    soften(model.model.audio_tower.decoder.head.conv, 0.1)
    recommend(
        model.generation_config,
        guidance_scale=1.3,
        num_diffusion_steps=4,
        max_new_tokens=256,
        noise_scheduler_class="DPMSolverMultistepScheduler",
        noise_scheduler_config={"beta_schedule": "squaredcos_cap_v2", "prediction_type": "v_prediction"},
    )
    model.save_pretrained(folder)
    extractor = VibeVoiceAcousticTokenizerFeatureExtractor(pad_to_multiple_of=config.audio_config.hop_length)
    VibeVoiceProcessor(extractor, tokenizer, chat_template=TEMPLATE).save_pretrained(folder)


def _lead(model: VibeVoiceForConditionalGeneration, seed: int) -> None:
    """Make speech continue more often than not: a direction in every frame's input favours another frame."""
    config = model.config
    direction = torch.randn(WIDTH, generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        model.model.multi_modal_projector.linear_2.bias.copy_(2 * direction)
        model.get_input_embeddings().weight[config.audio_bos_token_id] += 2 * direction
        model.lm_head.weight[config.audio_token_id] = direction / 4
        for token in (config.audio_bos_token_id, config.audio_eos_token_id, config.eos_token_id):
            model.lm_head.weight[token] *= 3.0
