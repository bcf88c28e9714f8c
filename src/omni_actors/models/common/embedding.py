"""Token embeddings that the ranks of a replica may have in parts."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from omni_actors.worker.collectives import Group


def embed(tokens: torch.Tensor, table: torch.Tensor, group: Group) -> torch.Tensor:
    """[tokens] → [tokens, width]. ``table`` is this rank's part of the vocabulary, as many rows at each rank: a token
    is in one of them, and zero in the others."""
    if group.size == 1:
        return F.embedding(tokens, table)
    rows = table.shape[0]
    place = tokens - group.rank * rows
    own = (place >= 0) & (place < rows)
    return group.sum(F.embedding(place.clamp(0, rows - 1), table) * own.unsqueeze(1))
