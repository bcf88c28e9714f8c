"""Components that several tiny diffusion checkpoints have: text encoders, tokenizers, VAEs."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import diffusers
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTextModelWithProjection,
    CLIPTokenizer,
    T5Config,
    T5EncoderModel,
    T5Tokenizer,
)

from omni_actors.models.tiny.text import TEXT
from omni_actors.models.tiny.weights import initialise

VAE_GAINS: Mapping[str, float] = {"*conv2.weight": 0.4, "*to_out*": 0.4, "*conv_out.weight": 0.3, "*.bias": 0.3}
"""Gains with which a random VAE's pictures are neither grey nor all black and white."""


def save(folder: Path, pipe: diffusers.DiffusionPipeline) -> None:
    """Write a pipeline's folder, without the traces of this machine in it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pipe.save_pretrained(folder)
    for path in folder.rglob("*.json"):
        read = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(read, dict) and read.pop("_name_or_path", None) is not None:
            path.write_text(json.dumps(read, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def clip_tokenizer(longest: int = 77) -> CLIPTokenizer:
    """Return CLIP's tokenizer with merges of common words."""
    trained = Tokenizer(BPE(end_of_word_suffix="</w>"))
    trained.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = BpeTrainer(vocab_size=800, initial_alphabet=alphabet, end_of_word_suffix="</w>", show_progress=False)
    trained.train_from_iterator(TEXT.split(), trainer)
    model = json.loads(trained.to_str())["model"]
    vocabulary: dict[str, int] = model["vocab"]
    # Any byte may also end a word.
    for token in (*(f"{letter}</w>" for letter in alphabet), "<|startoftext|>", "<|endoftext|>"):
        vocabulary.setdefault(token, len(vocabulary))
    return CLIPTokenizer(vocab=vocabulary, merges=[tuple(pair) for pair in model["merges"]], model_max_length=longest)


def clip_encoder(words: CLIPTokenizer, seed: int, *, width: int, projection: int | None = None) -> Any:
    """Return a text encoder of CLIP's kind; with a ``projection`` it gives a pooled embedding of that width."""
    kind = CLIPTextModel if projection is None else CLIPTextModelWithProjection
    config = CLIPTextConfig(
        vocab_size=len(words),
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=2,
        num_attention_heads=2,
        projection_dim=projection or width,
        max_position_embeddings=words.model_max_length,
        bos_token_id=words.bos_token_id,
        eos_token_id=words.eos_token_id,
        pad_token_id=words.pad_token_id,
    )
    model = kind(config)
    initialise(model, seed, {"*layers*": 1.4, "*position_embedding*": 0.5})
    return model.eval()


def t5_tokenizer(longest: int = 512) -> T5Tokenizer:
    """Return T5's tokenizer with a vocabulary of letters and common words."""
    words = sorted({f"▁{word}" for word in TEXT.split()})
    letters = [chr(code) for code in range(33, 127)]
    vocabulary = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -3.0)]
    vocabulary += [(word, -4.0) for word in words] + [(letter, -8.0) for letter in letters]
    return T5Tokenizer(vocab=vocabulary, extra_ids=0, model_max_length=longest)


def t5_encoder(words: T5Tokenizer, seed: int, *, width: int) -> Any:
    """Return a text encoder of T5's kind."""
    config = T5Config(
        vocab_size=len(words),
        d_model=width,
        d_kv=width // 2,
        d_ff=2 * width,
        num_layers=2,
        num_heads=2,
        feed_forward_proj="gated-gelu",
        pad_token_id=words.pad_token_id,
        eos_token_id=words.eos_token_id,
    )
    model = T5EncoderModel(config)
    initialise(model, seed, {"*SelfAttention.q*": 1 / (width // 2) ** 0.5, "*relative_attention_bias*": 0.3})
    return model.eval()


def kl_vae(seed: int, *, channels: int = 4, side: int = 64, **settings: Any) -> diffusers.AutoencoderKL:
    """Return a VAE of 8 × 8 pixels to a latent, as most checkpoints have; pictures are up to 1 in size."""
    vae = diffusers.AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        block_out_channels=(8, 8, 16, 16),
        layers_per_block=1,
        latent_channels=channels,
        norm_num_groups=4,
        sample_size=side,
        **settings,
    )
    initialise(vae, seed, VAE_GAINS)
    return vae.eval()
