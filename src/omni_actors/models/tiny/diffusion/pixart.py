"""A tiny PixArt-Sigma."""

from __future__ import annotations

from pathlib import Path

import diffusers

from omni_actors.models.tiny.diffusion import parts
from omni_actors.models.tiny.weights import initialise


def write(folder: Path, seed: int) -> None:
    """Write the checkpoint into `folder`."""
    t5 = parts.t5_tokenizer()
    transformer = diffusers.PixArtTransformer2DModel(
        sample_size=8,
        num_layers=2,
        patch_size=2,
        attention_head_dim=8,
        num_attention_heads=3,
        caption_channels=32,
        in_channels=4,
        cross_attention_dim=24,
        out_channels=8,
        attention_bias=True,
        activation_fn="gelu-approximate",
        num_embeds_ada_norm=1000,
        norm_type="ada_norm_single",
        norm_elementwise_affine=False,
        norm_eps=1e-6,
    )
    initialise(transformer, seed, {"*to_out*": 0.7})
    pipe = diffusers.PixArtSigmaPipeline(
        transformer=transformer.eval(),
        scheduler=diffusers.DPMSolverMultistepScheduler(),
        vae=parts.kl_vae(seed + 1, scaling_factor=0.13025),
        text_encoder=parts.t5_encoder(t5, seed + 2, width=32),
        tokenizer=t5,
    )
    parts.save(folder, pipe)
