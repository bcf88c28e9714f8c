"""LoRA adapters at run time: several in one batch, each row with its own."""

from omni_actors.models.diffusion.acceleration.lora.registry import Loras

__all__ = ["Loras"]
