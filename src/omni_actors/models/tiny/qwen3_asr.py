"""A tiny Qwen3-ASR: the audio tower of Qwen3-Omni's kind in front of a Qwen3 decoder."""

from __future__ import annotations

from pathlib import Path

from transformers import GenerationConfig, Qwen3ASRConfig, Qwen3ASRFeatureExtractor, Qwen3ASRForConditionalGeneration

from omni_actors.models.tiny.text import tokenizer
from omni_actors.models.tiny.weights import initialise, silence

# In the order of the checkpoint's ids, which begin at 151643; some in between are left out.
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|audio_start|>", "<|audio_end|>", "<|audio_pad|>"]
# Tokens beside the tokenizer's special ones, which decoding leaves in the text.
MARKS = ["<asr_text>", "<timestamp>"]
NAMES = {
    "eos_token": "<|im_end|>",
    "pad_token": "<|endoftext|>",
    "audio_token": "<|audio_pad|>",
    "audio_bos_token": "<|audio_start|>",
    "audio_eos_token": "<|audio_end|>",
}
HIDDEN = 64
VOCABULARY = 704

TEMPLATE = """\
{%- macro parts(content) -%}
{%- if content is string -%}{{ content }}
{%- else -%}
{%- for part in content -%}
{%- if part.type == 'audio' or 'audio' in part -%}<|audio_start|><|audio_pad|><|audio_end|>
{%- elif 'text' in part -%}{{ part.text }}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
{%- endmacro -%}
{%- if messages[0].role != 'system' -%}
<|im_start|>system
<|im_end|>
{% endif -%}
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{{ parts(message.content) }}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% endif -%}
"""

GAINS = {
    "*layers*": 1.4,
    "*q_norm*": 3.0,
    # Tied to the output head: rows of unit length times the spread that logits shall have.
    "*language_model.embed_tokens*": 3.0 / HIDDEN**0.5,
}


def write(folder: Path, seed: int) -> None:
    """Write the checkpoint into `folder`."""
    words = tokenizer([*SPECIALS, *MARKS], NAMES, plain=MARKS)
    ids = {token: words.convert_tokens_to_ids(token) for token in [*SPECIALS, *MARKS]}
    model = Qwen3ASRForConditionalGeneration(settings(ids))
    initialise(model, seed, GAINS)
    rare = range(len(words) - len(SPECIALS) - len(MARKS), VOCABULARY)
    silence(model.lm_head, [number for number in rare if number != ids["<|im_end|>"]], 0.3)
    silence(model.lm_head, [ids["<|im_end|>"]], 1.4)  # an end within a hundred tokens or so
    ends = [ids["<|endoftext|>"], ids["<|im_end|>"]]
    model.generation_config = GenerationConfig(eos_token_id=ends, pad_token_id=ids["<|im_end|>"])
    model.save_pretrained(folder)
    words.chat_template = TEMPLATE
    words.save_pretrained(folder)
    Qwen3ASRFeatureExtractor(processor_class="Qwen3ASRProcessor").save_pretrained(folder)


def settings(ids: dict[str, int]) -> Qwen3ASRConfig:
    """Return the configuration, with the `ids` of the special tokens."""
    return Qwen3ASRConfig(
        audio_config={
            "num_mel_bins": 128,
            "encoder_layers": 3,
            "encoder_attention_heads": 2,
            "encoder_ffn_dim": 64,
            "d_model": 32,
            "output_dim": HIDDEN,
            "downsample_hidden_size": 16,
            # Attention over windows of two seconds, so that a short clip already has several.
            "n_window_infer": 200,
        },
        text_config={
            "vocab_size": VOCABULARY,
            "hidden_size": HIDDEN,
            "intermediate_size": 128,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "max_position_embeddings": 65536,
            "tie_word_embeddings": True,
        },
        audio_token_id=ids["<|audio_pad|>"],
        timestamp_token_id=ids["<timestamp>"],
        pad_token_id=ids["<|im_end|>"],
        eos_token_id=[ids["<|endoftext|>"], ids["<|im_end|>"]],
        tie_word_embeddings=True,
    )
