"""The rows of a denoising forward."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from omni_actors.worker.engines.diffusion.cursor import Cursor


@dataclass(frozen=True, slots=True)
class Conditioning:
    """The conditioning of one request.

    Args:
        positive: The family's embeddings of the prompt (and of an edit's pictures).
        negative: The same of the negative prompt; ``None`` without guidance by a second branch.
        extra: What both branches share (latents of pictures to edit, a mask), by name.
    """

    positive: Any
    negative: Any = None
    extra: Any = None


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a forward: a cursor, and the embeddings of one of its guidance branches."""

    cursor: Cursor
    embeddings: Any
    branch: int
    """0 for the negative branch if there are two, else the positive one."""

    @property
    def timestep(self) -> Any:
        """The timestep of the cursor's next step, as its scheduler gives it."""
        return self.cursor.timesteps[self.cursor.step]


def branch_pairs(output: torch.Tensor, scales: Iterable[float]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the negative and the positive branches of rows that come in pairs, each [cursors, …], and the guidance
    scales in a shape that multiplies them."""
    pairs = output.unflatten(0, (-1, 2))
    stacked = torch.tensor(list(scales), dtype=output.dtype, device=output.device)
    return pairs[:, 0], pairs[:, 1], stacked.view(-1, *[1] * (output.dim() - 1))
