"""Token embeddings that may be divided over the ranks of a replica."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from omni_actors.worker.collectives import Group


def embed(tokens: torch.Tensor, table: torch.Tensor, group: Group) -> torch.Tensor:
    """Return embeddings [tokens, width] of [tokens]. ``table`` is this rank's part of the vocabulary, with the same
    number of rows at each rank: a token is in the part of one rank, and zero at the others."""
    if group.size == 1:
        return F.embedding(tokens, table)
    rows = table.shape[0]
    place = tokens - group.rank * rows
    own = (place >= 0) & (place < rows)
    return group.sum(F.embedding(place.clamp(0, rows - 1), table) * own.unsqueeze(1))
