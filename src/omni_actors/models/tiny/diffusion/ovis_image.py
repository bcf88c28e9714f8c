"""A tiny Ovis-Image."""

from __future__ import annotations

from pathlib import Path

import diffusers
from transformers import Qwen3Config, Qwen3Model

from omni_actors.models.tiny.causal_lm import NAMES, SPECIALS, TEMPLATE
from omni_actors.models.tiny.diffusion import parts
from omni_actors.models.tiny.text import tokenizer
from omni_actors.models.tiny.weights import initialise


def write(folder: Path, seed: int) -> None:
    """Write the checkpoint into `folder`."""
    words = tokenizer(SPECIALS, NAMES)
    words.chat_template = TEMPLATE
    language = Qwen3Model(
        Qwen3Config(
            vocab_size=704,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=16,
            max_position_embeddings=1024,
            bos_token_id=None,
            eos_token_id=words.convert_tokens_to_ids("<|im_end|>"),
            pad_token_id=words.convert_tokens_to_ids("<|endoftext|>"),
        )
    )
    initialise(language, seed, {})
    transformer = diffusers.OvisImageTransformer2DModel(
        in_channels=16,
        out_channels=16,
        num_layers=2,
        num_single_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=32,
        axes_dims_rope=(4, 4, 8),
    )
    initialise(transformer, seed + 1, {"*norm*.linear.*": 0.5})
    pipe = diffusers.OvisImagePipeline(
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0, use_dynamic_shifting=True),
        vae=parts.kl_vae(
            seed + 2, use_quant_conv=False, use_post_quant_conv=False, shift_factor=0.1159, scaling_factor=0.3611
        ),
        text_encoder=language.eval(),
        tokenizer=words,
        transformer=transformer.eval(),
    )
    parts.save(folder, pipe)
