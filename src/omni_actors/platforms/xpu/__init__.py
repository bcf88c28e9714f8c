"""Intel's GPUs."""

from omni_actors.platforms.xpu.platform import XpuPlatform

__all__ = ["XpuPlatform"]
