"""NVIDIA's devices."""

from omni_actors.platforms.cuda.platform import CudaPlatform

__all__ = ["CudaPlatform"]
