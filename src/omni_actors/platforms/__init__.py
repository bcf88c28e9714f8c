"""Hardware: the contract of a platform, the detection of devices, and one package per built-in platform."""

from omni_actors.platforms.cpu import CpuPlatform
from omni_actors.platforms.platform import (
    CONTRACT,
    Detection,
    Device,
    Fault,
    Finding,
    OmniPlatform,
    PlatformError,
    Verdict,
)
from omni_actors.platforms.select import select
from omni_actors.protocol.options import Option

__all__ = [
    "CONTRACT",
    "CpuPlatform",
    "Detection",
    "Device",
    "Fault",
    "Finding",
    "OmniPlatform",
    "Option",
    "PlatformError",
    "Verdict",
    "select",
]
