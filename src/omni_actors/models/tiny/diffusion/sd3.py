"""A tiny Stable Diffusion 3: three text encoders, joint attention, pictures of 64 × 64 pixels."""

from __future__ import annotations

from pathlib import Path

import diffusers

from omni_actors.models.tiny.diffusion import parts
from omni_actors.models.tiny.weights import initialise

GAINS = {"*adaLN_modulation*": 0.5, "*norm*.linear.*": 0.5, "pos_embed*": 1.0, "proj_out*": 1.0}


def write(folder: Path, seed: int) -> None:
    """Write the checkpoint into `folder`."""
    clip, t5 = parts.clip_tokenizer(), parts.t5_tokenizer()
    transformer = diffusers.SD3Transformer2DModel(
        sample_size=8,
        patch_size=2,
        in_channels=4,
        out_channels=4,
        num_layers=2,
        attention_head_dim=8,
        num_attention_heads=4,
        caption_projection_dim=32,
        joint_attention_dim=48,
        pooled_projection_dim=40,
        pos_embed_max_size=16,
    )
    initialise(transformer, seed, GAINS)
    pipe = diffusers.StableDiffusion3Pipeline(
        transformer=transformer.eval(),
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0),
        vae=parts.kl_vae(
            seed + 1, use_quant_conv=False, use_post_quant_conv=False, shift_factor=0.0609, scaling_factor=1.5305
        ),
        text_encoder=parts.clip_encoder(clip, seed + 2, width=16, projection=16),
        tokenizer=clip,
        text_encoder_2=parts.clip_encoder(clip, seed + 3, width=24, projection=24),
        tokenizer_2=clip,
        text_encoder_3=parts.t5_encoder(t5, seed + 4, width=48),
        tokenizer_3=t5,
    )
    parts.save(folder, pipe)
