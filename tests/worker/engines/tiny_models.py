"""Tiny causal language models with random weights, as folders that look like downloaded ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedTokenizerFast,
)

CONTEXT = 512
EOS = 257
CHAT_TEMPLATE = (
    "{% for m in messages %}<|start|>{{ m.role }}\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
_SHAPE: dict[str, Any] = {
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": CONTEXT,
    "bos_token_id": None,
    "eos_token_id": EOS,
    "pad_token_id": None,
    "tie_word_embeddings": False,
}


def tokenizer() -> PreTrainedTokenizerFast:
    """A token per byte, then ``<|start|>`` (256) and ``<|end|>`` (257)."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({char: i for i, char in enumerate(alphabet)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["<|start|>", "<|end|>"])
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|end|>", chat_template=CHAT_TEMPLATE)


def build(kind: str = "llama", seed: int = 0, **changes: Any) -> Any:
    """A model of a transformers type, with weights large enough that what it says depends on all that it was told."""
    vocab = len(tokenizer())
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **{**_SHAPE, "vocab_size": vocab, **changes}))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:
                weight.add_(torch.randn_like(weight) * 0.2)
            elif name.endswith("bias"):
                weight.add_(torch.randn_like(weight) * 0.5)
            else:
                weight.mul_(5)
    return model.eval()


def save(folder: Path, kind: str = "llama", **changes: Any) -> str:
    """Write such a model with its tokenizer into ``folder``; its path."""
    build(kind, **changes).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return str(folder)
