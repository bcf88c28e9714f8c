"""The exceptions of the simulated driver. Only this package knows what these types and texts mean."""

from __future__ import annotations


class SimError(RuntimeError):
    """The base class of the driver's exceptions."""


class SimAllocationError(SimError):
    """The device has no memory left. (Not named ``OutOfMemoryError``, the name in other frameworks.)"""


class SimDeviceLost(SimError):
    """The device computes nothing more for this process."""
