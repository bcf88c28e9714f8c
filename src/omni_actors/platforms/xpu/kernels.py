"""What an Intel GPU executes: torch's own operators, attention as one fused call where the device has it.

Some (Arc A-Series among them) have no float64: an operator that asks for it raises.
"""

from __future__ import annotations

from omni_actors.platforms.runtime import Capability
from omni_actors.platforms.runtime.kernels import Kernels

_ANY_LENGTH = 1 << 31


def kernels(capability: Capability) -> Kernels:
    """This device's choice: without fused attention (the Max series) a decode is two products."""
    return Kernels(
        fused_decode_limit=_ANY_LENGTH if "fused_attention" in capability.features else 0,
        draws_on_host="fp64" not in capability.features,
    )
