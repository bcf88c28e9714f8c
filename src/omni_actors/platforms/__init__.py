"""What the product knows about hardware: one contract, its detection, and one file per platform."""

from omni_actors.platforms.cpu import CpuPlatform
from omni_actors.platforms.platform import Device, Fault, OmniPlatform, PlatformError
from omni_actors.platforms.select import select

__all__ = ["CpuPlatform", "Device", "Fault", "OmniPlatform", "PlatformError", "select"]
