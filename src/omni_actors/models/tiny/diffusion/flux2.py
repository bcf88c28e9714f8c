"""A tiny FLUX.2 klein: a language model of Qwen3's kind as text encoder."""

from __future__ import annotations

from pathlib import Path

import diffusers
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from omni_actors.models.tiny.causal_lm import NAMES, SPECIALS, TEMPLATE
from omni_actors.models.tiny.diffusion import parts
from omni_actors.models.tiny.text import tokenizer
from omni_actors.models.tiny.weights import initialise

GAINS = {"*modulation*": 0.5, "norm_out.linear*": 0.5}
HIDDEN = 16


def write(folder: Path, seed: int) -> None:
    """Write the checkpoint into `folder`."""
    words = tokenizer(SPECIALS, NAMES)
    words.chat_template = TEMPLATE
    # The pipeline reads the states behind the layers 9, 18 and 27.
    language = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=704,
            hidden_size=HIDDEN,
            intermediate_size=32,
            num_hidden_layers=28,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=8,
            max_position_embeddings=1024,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=words.convert_tokens_to_ids("<|im_end|>"),
            pad_token_id=words.convert_tokens_to_ids("<|endoftext|>"),
        )
    )
    initialise(language, seed, {})
    transformer = diffusers.Flux2Transformer2DModel(
        patch_size=1,
        in_channels=16,
        num_layers=2,
        num_single_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=3 * HIDDEN,
        timestep_guidance_channels=32,
        axes_dims_rope=(4, 4, 4, 4),
        guidance_embeds=False,
    )
    initialise(transformer, seed + 1, GAINS)
    vae = diffusers.AutoencoderKLFlux2(
        block_out_channels=(8, 8, 16, 16), layers_per_block=1, latent_channels=4, norm_num_groups=4, sample_size=64
    )
    initialise(vae, seed + 2, parts.VAE_GAINS)
    generator = torch.Generator().manual_seed(seed + 3)
    vae.bn.running_mean.normal_(0.0, 0.2, generator=generator)
    vae.bn.running_var.uniform_(0.5, 2.0, generator=generator)
    pipe = diffusers.Flux2KleinPipeline(
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0, use_dynamic_shifting=True),
        vae=vae.eval(),
        text_encoder=language.eval(),
        tokenizer=words,
        transformer=transformer.eval(),
        is_distilled=False,
    )
    parts.save(folder, pipe)
