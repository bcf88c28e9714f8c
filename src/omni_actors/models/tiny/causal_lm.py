"""A tiny language model of Qwen3's kind, for the pipeline ``causal-lm``."""

from __future__ import annotations

from pathlib import Path

from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

from omni_actors.models.tiny.text import tokenizer
from omni_actors.models.tiny.weights import initialise, silence

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
NAMES = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
HIDDEN = 64
VOCABULARY = 704

TEMPLATE = """\
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% endif -%}
"""

GAINS = {
    "*layers*": 1.4,
    "*q_norm*": 3.0,
    # Tied to the output head: rows of unit length times the spread that logits shall have.
    "*embed_tokens*": 3.0 / HIDDEN**0.5,
}


def write(folder: Path, seed: int) -> None:
    """Write the checkpoint into `folder`."""
    words = tokenizer(SPECIALS, NAMES)
    ids = {token: words.convert_tokens_to_ids(token) for token in SPECIALS}
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=VOCABULARY,
            hidden_size=HIDDEN,
            intermediate_size=128,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=16,
            max_position_embeddings=1024,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=ids["<|im_end|>"],
            pad_token_id=ids["<|endoftext|>"],
        )
    )
    initialise(model, seed, GAINS)
    silence(model.lm_head, list(range(len(words), VOCABULARY)), 0.3)
    ends = [ids["<|endoftext|>"], ids["<|im_end|>"]]
    model.generation_config = GenerationConfig(eos_token_id=ends, pad_token_id=ids["<|endoftext|>"])
    model.save_pretrained(folder)
    words.chat_template = TEMPLATE
    words.save_pretrained(folder)
