"""A loaded LoRA adapter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class LowRank:
    """The low-rank term of one linear layer or convolution: ``up @ down`` times ``factor`` is added to its weight.

    Args:
        down: [rank, inputs], or of a convolution [rank, inputs, height, width].
        up: [outputs, rank], or of a convolution [outputs, rank, 1, 1].
        factor: The adapter's own factor: its alpha by its rank.
    """

    down: torch.Tensor
    up: torch.Tensor
    factor: float

    @property
    def nbytes(self) -> int:
        """The bytes of both matrices."""
        return int(self.down.nbytes + self.up.nbytes)


@dataclass(frozen=True, eq=False)
class LoraAdapter:
    """A LoRA adapter of the denoiser. Requests that use the adapter hold it: when it has been unloaded and they have
    ended, its memory is free.

    Args:
        name: The name by which requests choose the adapter.
        path: The file of its weights.
        terms: Name of a module of the denoiser → its term.
    """

    name: str
    path: str
    terms: Mapping[str, LowRank]

    @property
    def nbytes(self) -> int:
        """The bytes of all terms."""
        return sum(term.nbytes for term in self.terms.values())
