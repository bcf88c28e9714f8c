"""What the simulated driver raises. Types and words of its own: nobody but this package can know what they mean."""

from __future__ import annotations


class SimError(RuntimeError):
    """Base of all."""


class SimAllocationError(SimError):
    """The device has no room. (Not named ``OutOfMemoryError``, by which other frameworks' are known.)"""


class SimDeviceLost(SimError):
    """The device does no more for this process."""
