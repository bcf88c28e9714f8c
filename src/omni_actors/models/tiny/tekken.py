"""A small tokenizer in Mistral's own format, ``tekken.json``: bytes, merges by rank, special tokens before them.

The format is that of mistral-common (https://github.com/mistralai/mistral-common); transformers reads it as it is.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from transformers.convert_slow_tokenizer import bytes_to_unicode

from omni_actors.models.tiny.text import TEXT

SPECIAL_TOKENS = 1000
"""Number of ids before the first byte's, most of them unused."""

PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""The pattern that cuts text before merging: words by case, single digits, punctuation, blanks."""


def write_tekken(folder: Path, specials: dict[int, str], *, base: int, audio: dict[str, Any]) -> int:
    """Write ``tekken.json`` with `base` bytes and merged tokens, and `specials` by id; return the vocabulary's size."""
    trained = Tokenizer(BPE())
    split = pre_tokenizers.Split(Regex(PATTERN), behavior="isolated")
    trained.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    trainer = BpeTrainer(vocab_size=base, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    trained.train_from_iterator([" " + word for word in TEXT.split()], trainer)
    ranked = sorted(trained.get_vocab().items(), key=lambda item: item[1])
    unmapped = {symbol: value for value, symbol in bytes_to_unicode().items()}
    merged = [bytes(unmapped[symbol] for symbol in token) for token, _ in ranked if len(token) > 1]
    tokens = [bytes([value]) for value in range(256)] + merged
    size = SPECIAL_TOKENS + len(tokens)
    count = max(specials) + 1
    content = {
        "config": {
            "pattern": PATTERN,
            "num_vocab_tokens": len(tokens),
            "default_vocab_size": size,
            "default_num_special_tokens": SPECIAL_TOKENS,
            "version": "v7",
        },
        "vocab": [
            {"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": _text(token)}
            for rank, token in enumerate(tokens)
        ],
        "special_tokens": [
            {"rank": rank, "token_str": specials.get(rank, f"<SPECIAL_{rank}>"), "is_control": True}
            for rank in range(count)
        ],
        "audio": audio,
    }
    (folder / "tekken.json").write_text(json.dumps(content, indent=1) + "\n")
    return size


def _text(token: bytes) -> str | None:
    try:
        return token.decode()
    except UnicodeDecodeError:
        return None
