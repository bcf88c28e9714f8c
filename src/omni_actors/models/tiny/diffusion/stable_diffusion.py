"""Tiny Stable Diffusion models with a UNet: 1.5, its version for inpainting, and XL."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import diffusers

from omni_actors.models.tiny.diffusion import parts
from omni_actors.models.tiny.weights import initialise

GAINS = {"*conv2.weight": 0.5, "*to_out*": 0.5, "*time_emb_proj*": 0.5}


def unet(seed: int, *, width: int, **settings: Any) -> Any:
    """Return a UNet for latents of 8 × 8 that attends to embeddings of `width`."""
    made = diffusers.UNet2DConditionModel(
        **{
            "block_out_channels": (8, 16),
            "layers_per_block": 1,
            "sample_size": 8,
            "in_channels": 4,
            "out_channels": 4,
            "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
            "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
            "cross_attention_dim": width,
            "attention_head_dim": 8,
            "norm_num_groups": 2,
            **settings,
        }
    )
    initialise(made, seed, GAINS)
    return made.eval()


@dataclass(frozen=True, slots=True)
class StableDiffusion:
    """A tiny Stable Diffusion 1.5 for diffusers' pipeline class of a name, with a UNet of so many channels."""

    pipeline: str
    channels: int = 4

    def write(self, folder: Path, seed: int) -> None:
        """Write the checkpoint into `folder`."""
        clip = parts.clip_tokenizer()
        pipe = getattr(diffusers, self.pipeline)(
            unet=unet(seed, width=32, in_channels=self.channels),
            vae=parts.kl_vae(seed + 1),
            text_encoder=parts.clip_encoder(clip, seed + 2, width=32),
            tokenizer=clip,
            scheduler=diffusers.PNDMScheduler(
                beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", skip_prk_steps=True, steps_offset=1
            ),
            safety_checker=None,
            feature_extractor=None,
            requires_safety_checker=False,
        )
        parts.save(folder, pipe)


@dataclass(frozen=True, slots=True)
class StableDiffusionXL:
    """A tiny Stable Diffusion XL."""

    def write(self, folder: Path, seed: int) -> None:
        """Write the checkpoint into `folder`."""
        clip = parts.clip_tokenizer()
        pipe = diffusers.StableDiffusionXLPipeline(
            unet=unet(
                seed,
                width=32 + 24,
                attention_head_dim=(1, 2),
                use_linear_projection=True,
                transformer_layers_per_block=(1, 2),
                addition_embed_type="text_time",
                addition_time_embed_dim=8,
                projection_class_embeddings_input_dim=6 * 8 + 24,
            ),
            vae=parts.kl_vae(seed + 1, scaling_factor=0.13025),
            text_encoder=parts.clip_encoder(clip, seed + 2, width=32),
            tokenizer=clip,
            text_encoder_2=parts.clip_encoder(clip, seed + 3, width=24, projection=24),
            tokenizer_2=clip,
            scheduler=diffusers.EulerDiscreteScheduler(
                beta_start=0.00085,
                beta_end=0.012,
                beta_schedule="scaled_linear",
                steps_offset=1,
                timestep_spacing="leading",
            ),
        )
        parts.save(folder, pipe)


BASE = StableDiffusion("StableDiffusionPipeline")
INPAINT = StableDiffusion("StableDiffusionInpaintPipeline", channels=9)
XL = StableDiffusionXL()
