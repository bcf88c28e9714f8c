"""Huawei's Ascend NPUs."""

from omni_actors.platforms.ascend.platform import AscendPlatform

__all__ = ["AscendPlatform"]
