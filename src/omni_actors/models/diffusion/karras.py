"""The schedulers of the Karras family, one for each cursor: DDIM, Euler, DPM++ and their like."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch

from omni_actors.models.diffusion.adapter import DiffusersAdapter
from omni_actors.worker.engines.diffusion.cursor import Cursor


class KarrasAdapter(DiffusersAdapter):
    """A family whose scheduler may be any of diffusers' ``KarrasDiffusionSchedulers``.

    They scale the denoiser's input by the noise of the step, differ in what the denoiser predicts (noise, velocity or
    the clean latents), and some draw noise in every step: from the cursor's own generator, as diffusers does.
    """

    def schedule(self, cursor: Cursor) -> None:
        scheduler = cursor.scheduler
        scheduler.set_timesteps(cursor.steps, device=self.device)
        if hasattr(scheduler, "set_begin_index"):
            scheduler.set_begin_index(0)
        self.use_timesteps(cursor)
        self.start(cursor)
        # A first call finds the scheduler's place in its schedule; later calls, in forwards, change nothing.
        self.scaled(cursor)

    def start(self, cursor: Cursor) -> None:
        """Make the first latents of the noise in :attr:`Cursor.latents`, once the scheduler has its timesteps."""
        cursor.latents = cursor.latents * cursor.scheduler.init_noise_sigma

    def scaled(self, cursor: Cursor) -> torch.Tensor:
        """Return the latents as the denoiser reads them in the next step."""
        scaled: torch.Tensor = cursor.scheduler.scale_model_input(cursor.latents, cursor.timesteps[cursor.step])
        return scaled

    def step_arguments(self, cursor: Cursor) -> Mapping[str, Any]:
        taken = inspect.signature(cursor.scheduler.step).parameters
        arguments = {"generator": cursor.generator, "eta": 0.0}
        return {name: value for name, value in arguments.items() if name in taken}

    def clean(self, cursor: Cursor, prediction: torch.Tensor) -> torch.Tensor:
        scheduler = cursor.scheduler
        sigma = _sigma(cursor)
        if hasattr(scheduler, "precondition_outputs"):
            found: torch.Tensor = scheduler.precondition_outputs(cursor.latents, prediction, sigma)
            return found
        kind = scheduler.config.get("prediction_type", "epsilon")
        if kind == "sample":
            return prediction
        if kind == "flow_prediction":
            return super().clean(cursor, prediction)
        if sigma is None:
            kept = scheduler.alphas_cumprod[int(cursor.timesteps[cursor.step])]
        else:
            kept = 1 / (sigma**2 + 1)
        latents = self.scaled(cursor)
        if kind == "v_prediction":
            return kept**0.5 * latents - (1 - kept) ** 0.5 * prediction
        return (latents - (1 - kept) ** 0.5 * prediction) / kept**0.5


def _sigma(cursor: Cursor) -> Any:
    """Return the noise of the next step beside a clean picture of scale one; ``None`` if the scheduler has no such
    table."""
    scheduler = cursor.scheduler
    sigmas = getattr(scheduler, "sigmas", None)
    if sigmas is None:
        return None
    begin = getattr(scheduler, "begin_index", None) or 0
    if not getattr(scheduler, "state_in_first_order", True) and hasattr(scheduler, "sigmas_interpol"):
        sigmas = scheduler.sigmas_interpol
    return sigmas[begin + cursor.step]
