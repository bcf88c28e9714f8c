"""Kernels of an Intel GPU: torch's own operators, and attention as one fused call if the device has one.

Some GPUs (Arc A-Series among them) have no float64, and float64 operators raise there.
"""

from __future__ import annotations

from omni_actors.platforms.runtime import Capability
from omni_actors.platforms.runtime.kernels import Kernels

_ANY_LENGTH = 1 << 31


def kernels(capability: Capability) -> Kernels:
    """Return the kernels of a device. Without fused attention (the Max series) a decode is two products."""
    return Kernels(
        fused_decode_limit=_ANY_LENGTH if "fused_attention" in capability.features else 0,
        draws_on_host="fp64" not in capability.features,
    )
