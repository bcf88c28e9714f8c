"""The half of a platform that its workers use: the contract of a device, and what computes on it.

Importing this package imports no torch. Of its modules, ``kernels``, ``modules``, ``kernel_validation`` and
``triton_attention`` import torch, so only workers import those.
"""

from omni_actors.platforms.runtime.device import (
    Capability,
    DeviceRuntime,
    DeviceTransport,
    Graphs,
    Memory,
    Patch,
    T,
    TransportError,
)

__all__ = [
    "Capability",
    "DeviceRuntime",
    "DeviceTransport",
    "Graphs",
    "Memory",
    "Patch",
    "T",
    "TransportError",
]
