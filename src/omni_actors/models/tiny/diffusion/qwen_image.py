"""Tiny Qwen-Images: text to image, edits of one and of several pictures, layers."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import diffusers
from transformers import (
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2Tokenizer,
)

from omni_actors.models.tiny.diffusion import parts
from omni_actors.models.tiny.text import tokenizer
from omni_actors.models.tiny.weights import initialise

HIDDEN = 48
CHANNELS = 8
"""Not as many as a picture with transparency has: diffusers takes such a picture for latents."""
SPECIALS = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
]
NAMES = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}

GAINS = {"*_mod.*": 0.5, "norm_out*": 0.5, "*norm_q*": 1.0, "*norm_k*": 1.0}
VAE_GAINS = {"*residual*": 0.7, "*conv2*": 0.4, "*conv_out*": 0.3, "*.bias": 0.3, "*to_out*": 0.4}


@dataclass(frozen=True)
class Variant:
    """One of the family's checkpoints. ``settings`` are the transformer's."""

    pipeline: str
    pictures: bool = False
    picture_channels: int = 3
    settings: dict[str, Any] = field(default_factory=dict)

    def write(self, folder: Path, seed: int) -> None:
        """Write the checkpoint into `folder`."""
        words = tokenizer(SPECIALS, NAMES)
        further = {"processor": None} if self.pictures else {}
        pipe = getattr(diffusers, self.pipeline)(
            transformer=transformer(seed, **self.settings),
            scheduler=diffusers.FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True, shift_terminal=0.02),
            vae=vae(seed + 1, self.picture_channels),
            text_encoder=text_encoder(words, seed + 2),
            tokenizer=words,
            **further,
        )
        parts.save(folder, pipe)
        if self.pictures:
            write_processor(folder, words)


def transformer(seed: int, **settings: Any) -> Any:
    """Return the transformer of 2 layers."""
    model = diffusers.QwenImageTransformer2DModel(
        patch_size=2,
        in_channels=4 * CHANNELS,
        out_channels=CHANNELS,
        num_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=HIDDEN,
        axes_dims_rope=(4, 6, 6),
        **settings,
    )
    initialise(model, seed, GAINS)
    return model.eval()


def vae(seed: int, channels: int) -> Any:
    """Return the VAE, of 8 × 8 pixels to a latent."""
    model = diffusers.AutoencoderKLQwenImage(
        base_dim=8,
        z_dim=CHANNELS,
        dim_mult=[1, 2, 2, 2],
        num_res_blocks=1,
        temperal_downsample=[False, True, True],
        input_channels=channels,
        latents_mean=[-0.1, 0.2, 0.0, 0.1, 0.1, -0.2, 0.3, 0.0],
        latents_std=[1.2, 0.9, 1.1, 1.0, 0.8, 1.1, 1.0, 0.9],
    )
    initialise(model, seed, VAE_GAINS)
    return model.eval()


def text_encoder(words: Qwen2Tokenizer, seed: int) -> Any:
    """Return the language model that reads the prompt and the pictures."""
    ids = {token: words.convert_tokens_to_ids(token) for token in SPECIALS}
    config = Qwen2_5_VLConfig(
        text_config={
            "vocab_size": len(words),
            "hidden_size": HIDDEN,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 4096,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0, "mrope_section": [2, 2, 2]},
            "bos_token_id": ids["<|endoftext|>"],
            "eos_token_id": ids["<|im_end|>"],
            "pad_token_id": ids["<|endoftext|>"],
        },
        vision_config={
            "depth": 2,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_heads": 2,
            "out_hidden_size": HIDDEN,
            "patch_size": 14,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "window_size": 56,
            "fullatt_block_indexes": [1],
        },
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
    )
    model = Qwen2_5_VLForConditionalGeneration(config)
    initialise(model, seed, {"*layers*": 1.4})
    return model.eval()


def write_processor(folder: Path, words: Qwen2Tokenizer) -> None:
    """Write the processor of pictures for the text encoder: 4 to 16 tokens a picture."""
    token = 28 * 28
    settings = {
        "processor_class": "Qwen2VLProcessor",
        "image_processor_type": "Qwen2VLImageProcessor",
        "min_pixels": 4 * token,
        "max_pixels": 16 * token,
        "patch_size": 14,
        "temporal_patch_size": 2,
        "merge_size": 2,
    }
    words.save_pretrained(folder / "processor")
    (folder / "processor" / "preprocessor_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    index = json.loads((folder / "model_index.json").read_text(encoding="utf-8"))
    index["processor"] = ["transformers", "Qwen2VLProcessor"]
    (folder / "model_index.json").write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


TEXT = Variant("QwenImagePipeline")
EDIT = Variant("QwenImageEditPipeline", pictures=True)
EDIT_PLUS = Variant("QwenImageEditPlusPipeline", pictures=True, settings={"zero_cond_t": True})
LAYERED = Variant(
    "QwenImageLayeredPipeline",
    pictures=True,
    picture_channels=4,
    settings={"use_additional_t_cond": True, "use_layer3d_rope": True},
)
