"""A tiny latent consistency model: a class of diffusers that no family here serves step by step."""

from __future__ import annotations

from pathlib import Path

import diffusers

from omni_actors.models.tiny.diffusion import parts
from omni_actors.models.tiny.weights import initialise

GAINS = {"*conv2.weight": 0.5, "*to_out*": 0.5, "*.bias": 0.3}


def write(folder: Path, seed: int) -> None:
    """Write the checkpoint into `folder`."""
    clip = parts.clip_tokenizer()
    unet = diffusers.UNet2DConditionModel(
        sample_size=8,
        in_channels=4,
        out_channels=4,
        block_out_channels=(16, 32),
        layers_per_block=1,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=32,
        norm_num_groups=4,
        attention_head_dim=2,
        time_cond_proj_dim=32,
    )
    initialise(unet, seed, GAINS)
    pipe = diffusers.LatentConsistencyModelPipeline(
        vae=parts.kl_vae(seed + 1),
        text_encoder=parts.clip_encoder(clip, seed + 2, width=32),
        tokenizer=clip,
        unet=unet.eval(),
        scheduler=diffusers.LCMScheduler(beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear"),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    parts.save(folder, pipe)
