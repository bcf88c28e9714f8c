"""AMD's devices."""

from omni_actors.platforms.rocm.platform import RocmPlatform

__all__ = ["RocmPlatform"]
