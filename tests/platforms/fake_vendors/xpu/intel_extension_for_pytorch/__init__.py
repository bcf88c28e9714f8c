"""intel-extension-for-pytorch: what its engine asks of it."""

from __future__ import annotations

import torch
from tests.platforms.fake_vendors.host_device import record


def optimize(model: torch.nn.Module, *, inplace: bool = False) -> torch.nn.Module:
    record("ipex.optimize")
    if model.training or not inplace:
        raise RuntimeError("an engine wants the module that it has, prepared for inference")
    return model
