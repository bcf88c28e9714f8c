"""A code predictor: the small transformer that adds a frame's residual codes to its first code.

A codec frame has several codes. The talker samples the first; this network, conditioned on the talker's hidden state,
samples the others one after the other. Its whole context is one frame, so it runs to its end between two steps of the
talker, for all frames of the step at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from omni_actors.models.common.layers import Layers
from omni_actors.models.common.rotary import Rotary
from omni_actors.platforms.runtime import Graphs
from omni_actors.platforms.runtime.kernels import Linear
from omni_actors.worker.checks import OutputError
from omni_actors.worker.engines.autoregressive.graphs import CapturedRows

_ALL = 1 << 24
"""A number above any head's count of codes; a float32 counts up to it exactly."""


@dataclass(frozen=True, slots=True)
class DepthSampling:
    """Sampling parameters of the residual codes: greedy at temperature 0. ``top_k`` 0 and ``top_p`` 1 are off."""

    temperature: float = 1.0
    top_k: int = 50
    top_p: float = 0.8

    @property
    def greedy(self) -> bool:
        return self.temperature < 1e-5


@dataclass(frozen=True, slots=True)
class Draw:
    """The identity of a frame: its residual codes are a function of (seed, position) and their logits alone."""

    sampling: DepthSampling
    seed: int
    position: int


class DepthDecoder:
    """The code predictor.

    ``embeddings[i]`` and ``heads[i]`` are those of residual code ``i`` (from 0). ``project`` maps inputs of the
    talker's width to the network's own, if the widths differ.
    """

    def __init__(
        self,
        layers: Layers,
        rotary: Rotary,
        norm: torch.Tensor,
        embeddings: Sequence[torch.Tensor],
        heads: Sequence[Linear],
        project: Linear | None = None,
    ) -> None:
        self._layers = layers
        self._norm = norm
        self._embeddings = embeddings
        self._heads = heads
        self._project = project
        self._cos, self._sin = rotary.at(torch.arange(len(heads) + 1, device=layers.device))
        self._captured: dict[bool, CapturedRows] = {}  # by whether codes are drawn

    @torch.inference_mode()
    def capture(self, graphs: Graphs, most: int) -> None:
        """Capture the computation for up to ``most`` frames as graphs, greedily and not. Raises RuntimeError if graphs
        are not possible."""
        frame = self._embeddings[0].new_zeros(1, self._embeddings[0].shape[1])
        columns = self._columns([Draw(DepthSampling(), 0, 0)], frame.device)
        assert columns is not None
        greedy = CapturedRows(graphs, most, lambda hidden, first: self._compute(hidden, first, None), (frame, frame))
        drawn = CapturedRows(
            graphs,
            most,
            lambda hidden, first, *columns: self._compute(hidden, first, columns),
            (frame, frame, *columns),
        )
        self._captured = {False: greedy, True: drawn}

    @torch.inference_mode()
    def __call__(
        self, hidden: torch.Tensor, first: torch.Tensor, draws: Sequence[Draw]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return residual codes int64 [frames, residuals] and the sum [frames, width] of their embeddings.

        ``hidden`` [frames, width] are the talker's states and ``first`` [frames, width] the embeddings of the first
        codes. Raises :class:`OutputError` for states that are not finite, from which any code could come.
        """
        columns = self._columns(draws, hidden.device)
        recorded = self._captured.get(columns is not None)
        made = None if recorded is None else recorded(hidden, first, *(columns or ()))
        codes, total, sums = self._compute(hidden, first, columns) if made is None else made
        if not sums.isfinite().all():  # a NaN makes the sum of its row NaN
            raise OutputError("the code predictor's states are not finite")
        return codes, total

    def _compute(
        self, hidden: torch.Tensor, first: torch.Tensor, columns: tuple[torch.Tensor, ...] | None
    ) -> tuple[torch.Tensor, ...]:
        """Return the codes, the sum of their embeddings, and a sum of all states by frame. Does not wait for the
        device."""
        count = len(hidden)
        layers = self._layers
        attention = _FrameAttention(layers, count, len(self._heads) + 1)
        codes: list[torch.Tensor] = []
        total = torch.zeros_like(first)
        sums = torch.zeros(count, device=hidden.device)
        x = torch.stack((hidden, first), 1).flatten(0, 1)
        cos, sin = (table[:2].repeat(count, 1, 1) for table in (self._cos, self._sin))
        for i, head in enumerate(self._heads):
            x = x if self._project is None else self._project(x)
            x = layers(x, cos, sin, attention)
            x = x.view(count, -1, layers.width)[:, -1]
            sums += x.sum(-1)
            logits = head(torch.rms_norm(x, (layers.width,), self._norm, layers.eps))
            code = logits.argmax(-1) if columns is None else _draw(logits.float(), i, *columns)
            codes.append(code)
            x = F.embedding(code, self._embeddings[i])
            total += x
            if i + 1 < len(self._heads):
                cos, sin = (table[i + 2 : i + 3] for table in (self._cos, self._sin))
        return torch.stack(codes, 1), total, sums

    def embed(self, residuals: torch.Tensor) -> torch.Tensor:
        """Return the sum [frames, width] of the embeddings of residual codes int64 [frames, residuals], summed in the
        same order as when the codes are chosen."""
        total = torch.zeros_like(F.embedding(residuals[:, 0], self._embeddings[0]))
        for i, embeddings in enumerate(self._embeddings):
            total += F.embedding(residuals[:, i], embeddings)
        return total

    def _columns(self, draws: Sequence[Draw], device: torch.device) -> tuple[torch.Tensor, ...] | None:
        """Return the columns that :func:`_draw` reads of each frame; ``None`` if all frames are greedy."""
        if all(draw.sampling.greedy for draw in draws):
            return None
        uniform = [
            np.random.Generator(np.random.Philox(key=[draw.seed % (1 << 64), draw.position])).random(len(self._heads))
            for draw in draws
        ]
        return columns_of(np.array(uniform, np.float32), [draw.sampling for draw in draws], device)


class _FrameAttention:
    """:class:`~omni_actors.worker.engines.autoregressive.decoder.Attention` over frames of equal length, with a dense
    cache."""

    def __init__(self, layers: Layers, count: int, length: int) -> None:
        shape = (len(layers), count, 2 * layers.kv_heads, length, layers.head_dim)
        self._cache = torch.empty(shape, dtype=layers.dtype, device=layers.device)
        self._kv_heads = layers.kv_heads
        self._length = [0] * len(layers)

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key_value: torch.Tensor,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
    ) -> torch.Tensor:
        cache, kv_heads = self._cache[layer], self._kv_heads
        count, heads, head_dim = cache.shape[0], query.shape[1], query.shape[2]
        new = query.shape[0] // count
        start, end = self._length[layer], self._length[layer] + new
        self._length[layer] = end
        cache[:, :, start:end] = key_value.view(count, new, 2 * kv_heads, head_dim).transpose(1, 2)
        keys, values = cache[:, :kv_heads, :end], cache[:, kv_heads:, :end]
        if new == 1:
            # The query heads that share a key head are rows of one product.
            q = query.view(count, kv_heads, heads // kv_heads, head_dim)
            weights = torch.softmax(torch.matmul(q, keys.transpose(2, 3)).mul_(scale), -1)
            return torch.matmul(weights, values).view(count, heads, head_dim)
        q = query.view(count, new, heads, head_dim).transpose(1, 2)
        out = F.scaled_dot_product_attention(q, keys, values, is_causal=True, scale=scale, enable_gqa=heads != kv_heads)
        return out.transpose(1, 2).reshape(-1, heads, head_dim)

    def keep(self, side: torch.Tensor) -> None:
        raise NotImplementedError("a code predictor hands nothing on")


def columns_of(
    uniform: np.ndarray, settings: Sequence[DepthSampling], device: torch.device
) -> tuple[torch.Tensor, ...]:
    """Return the columns of :func:`_draw`: ``uniform`` float32 [frames, residuals] in [0, 1), which decides each
    frame's codes; temperatures, counts and masses [frames, 1]; and the greedy frames."""
    settled = [(it.temperature, it.top_k or _ALL, it.top_p) for it in settings]
    temperature, top_k, top_p = torch.tensor(settled, device=device).unsqueeze(-1).unbind(1)
    greedy = torch.tensor([it.greedy for it in settings], device=device).unsqueeze(-1)
    return torch.from_numpy(uniform).to(device), temperature, top_k, top_p, greedy


def _draw(
    logits: torch.Tensor,
    place: int,
    uniform: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    greedy: torch.Tensor,
) -> torch.Tensor:
    """Return the ``place``-th code per row, by inverting the cumulative distribution over codes from the likeliest
    down."""
    ranked, order = logits.sort(dim=-1, descending=True, stable=True)
    probabilities = torch.softmax(ranked / temperature.clamp_min(1e-5), -1)
    probabilities = probabilities * (torch.arange(logits.shape[1], device=logits.device) < top_k)
    probabilities = probabilities / probabilities.sum(-1, keepdim=True)
    before = probabilities.cumsum(-1) - probabilities
    probabilities = probabilities * (before < top_p)
    total = probabilities.cumsum(-1)
    drawn = (total <= uniform[:, place, None] * total[:, -1:]).sum(-1, keepdim=True).clamp_max(logits.shape[1] - 1)
    return order.gather(1, drawn.masked_fill_(greedy, 0)).squeeze(1)
