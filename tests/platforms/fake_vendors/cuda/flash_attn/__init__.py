"""Package flash-attn for workers of the fake device."""

from __future__ import annotations

import torch
from tests.platforms.fake_flash import FlashAttn
from tests.platforms.fake_vendors.host_device import record

_flash = FlashAttn()


def flash_attn_func(*args: torch.Tensor, **kwargs: object) -> torch.Tensor:
    record("flash_attn_func")
    return _flash.flash_attn_func(*args, **kwargs)  # type: ignore[arg-type]


def flash_attn_with_kvcache(*args: torch.Tensor, **kwargs: object) -> torch.Tensor:
    record("flash_attn_with_kvcache")
    return _flash.flash_attn_with_kvcache(*args, **kwargs)  # type: ignore[arg-type]
