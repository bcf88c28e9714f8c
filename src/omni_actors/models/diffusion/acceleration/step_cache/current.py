"""The place in which a model's blocks find the forward under way."""

from __future__ import annotations

from dataclasses import dataclass

from omni_actors.models.diffusion.acceleration.step_cache.forward import CachedForward


@dataclass(slots=True)
class Current:
    """The forward under way, if any of its rows has a step cache. One per loaded model."""

    forward: CachedForward | None = None
