"""Moore Threads' GPUs."""

from omni_actors.platforms.musa.platform import MusaPlatform

__all__ = ["MusaPlatform"]
