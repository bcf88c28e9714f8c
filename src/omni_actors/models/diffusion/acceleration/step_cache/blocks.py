"""A model's block behind a step cache."""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn

from omni_actors.models.diffusion.acceleration.step_cache.current import Current


class CachedBlock(nn.Module):
    """A block that lets the forward under way decide which rows it computes. Without a cached row in the forward the
    block is called as it is.

    Args:
        block: The model's own block.
        index: Its number among all blocks.
        current: The place of the forward under way.
    """

    def __init__(self, block: nn.Module, index: int, current: Current) -> None:
        super().__init__()
        self.block = block
        self._index = index
        self._current = current
        self._names = tuple(inspect.signature(block.forward).parameters)

    def forward(self, *args: Any, **arguments: Any) -> Any:
        cached = self._current.forward
        if cached is None:
            return self.block(*args, **arguments)
        named = dict(zip(self._names, args, strict=False)) | arguments
        first = self._names[0]
        return cached.through(self._index, self.block, {first: named.pop(first), **named})

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the block itself, for models that look at their blocks."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("block"), name)
