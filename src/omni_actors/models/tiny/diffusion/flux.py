"""Tiny FLUX.1 models: dev (takes a guidance scale), schnell (takes none) and Kontext (edits)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import diffusers

from omni_actors.models.tiny.diffusion import parts
from omni_actors.models.tiny.weights import initialise

GAINS = {"*norm*.linear.*": 0.5, "proj_out*": 1.0}


@dataclass(frozen=True, slots=True)
class Flux:
    """A tiny FLUX.1 for diffusers' pipeline class of a name."""

    pipeline: str
    guided: bool = True

    def write(self, folder: Path, seed: int) -> None:
        """Write the checkpoint into `folder`."""
        clip, t5 = parts.clip_tokenizer(), parts.t5_tokenizer()
        transformer = diffusers.FluxTransformer2DModel(
            patch_size=1,
            in_channels=16,
            num_layers=2,
            num_single_layers=2,
            attention_head_dim=16,
            num_attention_heads=2,
            joint_attention_dim=32,
            pooled_projection_dim=32,
            axes_dims_rope=[4, 4, 8],
            guidance_embeds=self.guided,
        )
        initialise(transformer, seed, GAINS)
        vae = parts.kl_vae(
            seed + 1, use_quant_conv=False, use_post_quant_conv=False, shift_factor=0.1159, scaling_factor=0.3611
        )
        pipe = getattr(diffusers, self.pipeline)(
            transformer=transformer.eval(),
            scheduler=diffusers.FlowMatchEulerDiscreteScheduler(
                shift=3.0 if self.guided else 1.0, use_dynamic_shifting=self.guided
            ),
            vae=vae,
            text_encoder=parts.clip_encoder(clip, seed + 2, width=32),
            tokenizer=clip,
            text_encoder_2=parts.t5_encoder(t5, seed + 3, width=32),
            tokenizer_2=t5,
        )
        parts.save(folder, pipe)


DEV = Flux("FluxPipeline")
SCHNELL = Flux("FluxPipeline", guided=False)
KONTEXT = Flux("FluxKontextPipeline")
