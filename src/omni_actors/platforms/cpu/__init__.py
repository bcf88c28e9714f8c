"""Any machine with a processor."""

from omni_actors.platforms.cpu.platform import CpuPlatform, usable_cores, usable_memory

__all__ = ["CpuPlatform", "usable_cores", "usable_memory"]
