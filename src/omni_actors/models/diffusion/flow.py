"""The schedules of rectified-flow models, as diffusers' pipelines set them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from diffusers.pipelines.flux.pipeline_flux import calculate_shift, retrieve_timesteps

from omni_actors.worker.engines.diffusion.cursor import Cursor


def dynamic_shift(config: Any, tokens: int, max_shift: float = 1.15) -> float:
    """Return the shift ``mu`` of a schedule for a picture.

    Args:
        config: The scheduler's configuration.
        tokens: The latent tokens of the picture.
        max_shift: The family's default of ``max_shift``, for a configuration that does not name it.
    """
    found: float = calculate_shift(
        tokens,
        config.get("base_image_seq_len", 256),
        config.get("max_image_seq_len", 4096),
        config.get("base_shift", 0.5),
        config.get("max_shift", max_shift),
    )
    return found


def set_flow_timesteps(cursor: Cursor, device: torch.device, mu: float) -> None:
    """Set the timesteps of the cursor's own scheduler with the shift ``mu``, as FLUX and its relatives do."""
    flow = cursor.scheduler.config.get("use_flow_sigmas", False)
    sigmas = None if flow else np.linspace(1.0, 1 / cursor.steps, cursor.steps)
    retrieve_timesteps(cursor.scheduler, cursor.steps, device, sigmas=sigmas, mu=mu)
    cursor.scheduler.set_begin_index(0)


class PackedLatents:
    """A family whose latent token is a patch of 2 x 2 latents, so that sizes divide by twice the VAE's scale."""

    pipe: Any

    @property
    def default_size(self) -> tuple[int, int]:
        """Width and height of a picture whose size the client leaves open, within what the VAE was trained on."""
        side = min(self.pipe.default_sample_size * self.pipe.vae_scale_factor, self.pipe.vae.config.sample_size)
        return side, side

    @property
    def multiple(self) -> int:
        """The number that width and height must divide by."""
        return int(self.pipe.vae_scale_factor * 2)
