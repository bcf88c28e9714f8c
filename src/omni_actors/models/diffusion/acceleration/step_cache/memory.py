"""The memory of a step cache: residuals that a picture keeps between its steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from omni_actors.models.diffusion.acceleration.step_cache.settings import CacheSettings


@dataclass(frozen=True, slots=True)
class BranchMemory:
    """The residuals of the last full step of one guidance branch.

    Args:
        head: The residual of the first blocks [1, tokens, width].
        hidden: The residual of the blocks between the first and the last ones [1, tokens, width].
        text: The same of the text [1, text tokens, width]; ``None`` if no block after them reads the text.
        skips: Steps in a row that have used the residuals.
    """

    head: torch.Tensor
    hidden: torch.Tensor
    text: torch.Tensor | None
    skips: int = 0

    @property
    def nbytes(self) -> int:
        """The bytes of the residuals."""
        return int(self.head.nbytes + self.hidden.nbytes + (0 if self.text is None else self.text.nbytes))


@dataclass(slots=True)
class CursorCache:
    """The step cache of one cursor, in :attr:`Cursor.state`. No other cursor reads or changes the cache.

    Args:
        settings: The cursor's settings.
        branches: Guidance branch, counted from the last one (-1 is the positive one) → what its last full step left.
    """

    settings: CacheSettings
    branches: Mapping[int, BranchMemory] = field(default_factory=dict)
