"""Shared parts of the speech families' checkpoints: a tokenizer of bytes, and Mimi's sizes and codebooks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast


def byte_tokenizer(specials: Sequence[str], **settings: Any) -> PreTrainedTokenizerFast:
    """Return a tokenizer of one token per byte, then ``specials`` in order from id 256 on. ``settings`` go to the
    tokenizer."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(BPE(vocab={symbol: i for i, symbol in enumerate(alphabet)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(list(specials))
    return PreTrainedTokenizerFast(tokenizer_object=made, **settings)


def ids_of(tokenizer: Any, tokens: Sequence[str]) -> list[int]:
    """Return the ids of special tokens. Raises ValueError for an unknown one."""
    ids: list[int] = tokenizer.convert_tokens_to_ids(list(tokens))
    for token, number in zip(tokens, ids, strict=True):
        if number is None or number == tokenizer.unk_token_id:
            raise ValueError(f"the tokenizer has no token {token!r}")
    return ids


def mimi_config(codebooks: int, codes: int) -> dict[str, Any]:
    """Return the config of Mimi at 12.5 frames per second, with its transformers' windows short enough to matter."""
    return {
        "hidden_size": 32,
        "num_filters": 4,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "intermediate_size": 64,
        "codebook_size": codes,
        "codebook_dim": 16,
        "vector_quantization_hidden_dimension": 16,
        "num_quantizers": codebooks,
        "num_semantic_quantizers": 1,
        "upsample_groups": 32,
        "sliding_window": 20,
        "layer_scale_initial_scale": 0.5,
    }


def randomise_mimi(model: Any, seed: int) -> None:
    """Fill codebooks (buffers, all zeros in a new model) with entries that differ, and keep sound within [-1, 1]."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            if name.endswith("embed_sum"):
                buffer.copy_(torch.empty(buffer.shape).normal_(generator=generator))
        soften(model.decoder.decoder_seanet.layers[-1].conv, 0.15)


def soften(convolution: Any, factor: float) -> None:
    """Reduce the output of a codec's last convolution, so that sound stays within [-1, 1]."""
    with torch.no_grad():
        convolution.weight *= factor
        if convolution.bias is not None:
            convolution.bias *= factor


def recommend(generation_config: Any, **settings: Any) -> None:
    """Put these settings into a generation config, also settings that only the family knows."""
    for name, value in settings.items():
        setattr(generation_config, name, value)
    generation_config._from_model_config = False  # else settings that only the family knows are dropped on reading


def name_audio_tokenizer(folder: Path, codec: Any, name: str = "audio_tokenizer") -> None:
    """Make the processor name its codec by a path in the checkpoint's folder, instead of the path at the time of
    saving."""
    path = folder / "processor_config.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    settings["audio_tokenizer"] = {
        "audio_tokenizer_class": type(codec).__name__,
        "audio_tokenizer_name_or_path": name,
    }
    path.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
