"""The network of the digits model: diffusers' Stable Diffusion 3 transformer, small, over pictures of 8 x 8 pixels."""

from __future__ import annotations

from pathlib import Path

import diffusers
import torch

SIDE = 8
"""Width and height of the latents, which are the pixels of scikit-learn's digits: there is no autoencoder."""

CLASS_NAME = "DigitsPipeline"
"""``_class_name`` in ``model_index.json``."""


def new_transformer(width: int) -> diffusers.SD3Transformer2DModel:
    """Return the transformer with random weights, for text states of this width: 1.4 million parameters."""
    return diffusers.SD3Transformer2DModel(
        sample_size=SIDE,
        patch_size=2,
        in_channels=1,
        out_channels=1,
        num_layers=4,
        attention_head_dim=16,
        num_attention_heads=6,
        caption_projection_dim=96,
        joint_attention_dim=width,
        pooled_projection_dim=width,
        pos_embed_max_size=16,
    )


def load_pipe(folder: Path, dtype: torch.dtype) -> diffusers.StableDiffusion3Pipeline:
    """Return diffusers' pipeline over the model in a folder. It has neither text encoders nor an autoencoder: it takes
    embeddings (:class:`~omni_actors.models.digits.text.PromptEncoder`) and gives latents."""
    transformer = diffusers.SD3Transformer2DModel.from_pretrained(
        folder / "transformer", torch_dtype=dtype, low_cpu_mem_usage=False
    )
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler.from_pretrained(folder / "scheduler")
    encoders = ("text_encoder", "tokenizer", "text_encoder_2", "tokenizer_2", "text_encoder_3", "tokenizer_3")
    return diffusers.StableDiffusion3Pipeline(
        transformer=transformer.eval(), scheduler=scheduler, vae=None, **dict.fromkeys(encoders)
    )
