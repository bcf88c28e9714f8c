"""A simulated accelerator: the sample of a platform plugin.

This module is what the entry point names, so the serving process imports it: it must not import torch, nor anything
that does.
"""

from omni_sim.platform import SimPlatform

__all__ = ["SimPlatform"]
