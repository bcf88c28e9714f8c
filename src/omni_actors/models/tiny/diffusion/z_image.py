"""A tiny Z-Image: a Qwen3 reads the prompt; pictures of any sizes share a forward."""

from __future__ import annotations

from pathlib import Path

import diffusers
from transformers import Qwen3Config, Qwen3Model

from omni_actors.models.tiny.causal_lm import NAMES, SPECIALS, TEMPLATE
from omni_actors.models.tiny.diffusion import parts
from omni_actors.models.tiny.text import tokenizer
from omni_actors.models.tiny.weights import initialise

HIDDEN = 48

GAINS = {"*adaLN_modulation*": 0.5, "*q_norm*": 1.0}


def write(folder: Path, seed: int) -> None:
    """Write the checkpoint into `folder`."""
    words = tokenizer(SPECIALS, NAMES)
    words.chat_template = TEMPLATE
    encoder = Qwen3Model(
        Qwen3Config(
            vocab_size=len(words),
            hidden_size=HIDDEN,
            intermediate_size=96,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=16,
            max_position_embeddings=1024,
            pad_token_id=words.pad_token_id,
            eos_token_id=words.eos_token_id,
            bos_token_id=None,
        )
    )
    initialise(encoder, seed + 2, {"*layers*": 1.4})
    transformer = diffusers.ZImageTransformer2DModel(
        all_patch_size=(2,),
        all_f_patch_size=(1,),
        in_channels=4,
        dim=32,
        n_layers=2,
        n_refiner_layers=1,
        n_heads=2,
        n_kv_heads=2,
        cap_feat_dim=HIDDEN,
        axes_dims=[8, 4, 4],
        axes_lens=[1024, 64, 64],
    )
    initialise(transformer, seed, GAINS)
    pipe = diffusers.ZImagePipeline(
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0),
        vae=parts.kl_vae(
            seed + 1, use_quant_conv=False, use_post_quant_conv=False, shift_factor=0.1159, scaling_factor=0.3611
        ),
        text_encoder=encoder.eval(),
        tokenizer=words,
        transformer=transformer.eval(),
    )
    parts.save(folder, pipe)
