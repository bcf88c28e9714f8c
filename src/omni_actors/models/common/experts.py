"""A routed mixture of experts over a flat list of tokens."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from omni_actors.platforms.runtime.kernels import Kernels

DENSE_WORK = 1 << 20
"""Up to so many products (tokens x experts x width x inner width), every expert runs for every token in one batched
product. Measured on one core: up to there as fast as one expert after the other at 16 tokens and more, and up to twenty
times faster at few."""


class Experts:
    """A mixture of experts: each token goes to the ``top_k`` experts that ``router`` [experts, width] scores highest.

    ``gate_up`` is [experts, 2 * inner, width], ``down`` [experts, width, inner]. Probabilities are computed in float32;
    ``normalize`` makes the probabilities of a token's experts sum to one. Many tokens go through their experts by the
    platform's product.

    ``gate_up`` and ``down`` may belong to some experts alone, from number ``first`` on: the output of other experts is
    left out in that case.
    """

    def __init__(
        self,
        router: torch.Tensor,
        gate_up: torch.Tensor,
        down: torch.Tensor,
        top_k: int,
        normalize: bool,
        kernels: Kernels,
        first: int = 0,
    ) -> None:
        self._router = router
        self._gate_up = gate_up
        self._down = down
        self._top_k = top_k
        self._normalize = normalize
        self._product = kernels.experts
        self._first = first
        self._count, inner, width = down.shape[0], down.shape[2], down.shape[1]
        self._work = self._count * inner * width

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Map [tokens, width] to [tokens, width]."""
        probabilities = torch.softmax(F.linear(x, self._router), -1, dtype=torch.float32)
        weights, chosen = probabilities.topk(self._top_k, -1)
        if self._normalize:
            weights = weights / weights.sum(-1, keepdim=True)
        weights = weights.to(x.dtype)
        if x.shape[0] * self._work <= DENSE_WORK:
            return self._dense(x, weights, chosen)
        return self._grouped(x, weights, chosen)

    def _dense(self, x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        gate, up = torch.matmul(x, self._gate_up.transpose(1, 2)).chunk(2, -1)
        outputs = torch.bmm(F.silu(gate) * up, self._down.transpose(1, 2))
        every = torch.zeros(x.shape[0], self._router.shape[0], dtype=x.dtype, device=x.device)
        share = every.scatter_(1, chosen, weights)[:, self._first : self._first + self._count]
        return torch.bmm(share.unsqueeze(1), outputs.transpose(0, 1)).squeeze(1)

    def _grouped(self, x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        flat = chosen.flatten()
        if self._count < self._router.shape[0]:
            own = ((flat >= self._first) & (flat < self._first + self._count)).nonzero().squeeze(1)
            flat = flat.index_select(0, own) - self._first
            order = flat.argsort(stable=True)
            return self._sorted(x, weights, flat, own.index_select(0, order))
        return self._sorted(x, weights, flat, flat.argsort(stable=True))

    def _sorted(self, x: torch.Tensor, weights: torch.Tensor, flat: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
        """Return ``flat``, the experts of the tokens (counted from this rank's first), and ``order``, their places
        among all choices of all tokens, expert by expert."""
        token = torch.div(order, self._top_k, rounding_mode="floor")
        # Not bincount, which waits for the device.
        counts = flat.new_zeros(self._count).scatter_add_(0, flat, torch.ones_like(flat))
        outputs = self._product(x.index_select(0, token), counts, self._gate_up, self._down)
        outputs *= weights.flatten().index_select(0, order).unsqueeze(1)
        return torch.zeros_like(x).index_add_(0, token, outputs)
