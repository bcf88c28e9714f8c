"""Step caches: steps that reuse most of an earlier step's forward, decided by each picture for itself."""

from omni_actors.models.diffusion.acceleration.step_cache.cache import StepCache
from omni_actors.models.diffusion.acceleration.step_cache.forward import BlockLayout

__all__ = ["BlockLayout", "StepCache"]
