"""A simulated accelerator: an example of a platform plug-in, to copy.

The entry point names this module, so the serving process imports it. The module must not import torch, nor another
module that imports torch.
"""

from omni_sim.platform import SimPlatform

__all__ = ["SimPlatform"]
