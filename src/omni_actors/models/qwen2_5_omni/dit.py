"""The vocoder's diffusion transformer, ``Qwen2_5OmniToken2WavDiTModel``, written out over blocks.

Frames come in blocks of ``block`` frames, and no layer looks further than one block back or ahead. The unit of
computation is therefore a block, not a sequence: any number of windows, of any lengths, lie one behind the other in one
batch, and attention costs a block times two or three, not the window squared.

The parts that depend on the time alone (embedding, modulations) are computed once, since the solver's times are known;
the contributions of a request's voice and codes to the input are computed once as well.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import Qwen2_5OmniToken2WavDiTModel

_EPSILON = 1e-6
_GELU_LINE = 2 * math.sqrt(2 / math.pi)
_GELU_CUBE = 0.044715 * _GELU_LINE


@dataclass(frozen=True, slots=True)
class Layout:
    """How the blocks of a batch lie: window after window, guided ones and then the same windows free.

    ``starts`` int64 [2 * windows] are the places of the first blocks, ``ends`` of the last blocks, and ``kept`` of the
    blocks to be remembered. ``filled`` int64 [blocks] says how many frames of a block exist; ``remembered`` bool
    [2 * windows] whether the block before a window is remembered; ``positions`` float32 [blocks, block] are the places
    of frames in their sequence.
    """

    starts: torch.Tensor
    ends: torch.Tensor
    kept: torch.Tensor
    filled: torch.Tensor
    remembered: torch.Tensor
    positions: torch.Tensor


@dataclass(frozen=True, slots=True)
class Edges:
    """Rows (blocks) with some missing keys, and the mask added to the scores of the rows: [rows, 1, keys]."""

    rows: torch.Tensor
    bias: torch.Tensor


@dataclass(frozen=True, slots=True)
class Prepared:
    """The tensors of a layout used by every layer and evaluation: ``edges`` by (looks back, looks ahead), ``cos`` and
    ``sin`` [blocks, block, head]."""

    layout: Layout
    edges: dict[tuple[bool, bool], Edges | None]
    cos: torch.Tensor
    sin: torch.Tensor


@dataclass(frozen=True, slots=True)
class _Layer:
    back: bool
    ahead: bool
    qkv: tuple[torch.Tensor, torch.Tensor]
    out: tuple[torch.Tensor, torch.Tensor]
    wide: tuple[torch.Tensor, torch.Tensor]
    narrow: tuple[torch.Tensor, torch.Tensor]


class Network:
    """The diffusion transformer. ``times`` [evaluations] are the times of its evaluations, in order. The weights are
    the model's own (some are copies in another order), and computation is in the weights' dtype."""

    def __init__(self, model: Qwen2_5OmniToken2WavDiTModel, times: torch.Tensor) -> None:
        attention: Any = model.transformer_blocks[0].attn
        self.block = int(model.block_size)
        self.heads = int(attention.heads)
        self.head = int(attention.inner_dim) // self.heads
        self.evaluations = len(times)
        self._frequencies = model.rotary_embed.inv_freq.float()
        self._rotary_scale = float(model.rotary_embed.attention_scaling)
        projection = model.input_embed.proj
        mels = int(model.mel_dim)
        self._take = projection.weight[:, :mels].contiguous()
        self._constant = (projection.weight[:, mels:].contiguous(), projection.bias)
        self._give = (model.proj_out.weight, model.proj_out.bias)
        blocks: list[Any] = list(model.transformer_blocks)
        if any(max(b.look_backward_block, b.look_ahead_block) > 1 for b in blocks):
            raise ValueError("a layer of the vocoder looks further than one block")
        self._layers = [self._layer(block) for block in blocks]
        moments = F.silu(model.time_embed(times))
        modulations = torch.stack([b.attn_norm.linear(moments).unflatten(-1, (6, -1)) for b in blocks], 1)
        modulations[:, :, (1, 4)] += 1
        # [evaluations][layers]: shift, scale, gate of attention; shift, scale, gate of what follows
        self._modulations = [[layer.unbind() for layer in evaluation.unbind()] for evaluation in modulations.unbind()]
        last = model.norm_out.linear(moments).unflatten(-1, (2, -1))
        last[:, 0] += 1
        self._last = [evaluation.unbind() for evaluation in last.unbind()]

    def _layer(self, block: Any) -> _Layer:
        """Prepare a layer's weights: the queries' weights are scaled. Only the first head is rotated, by pairs of
        neighbours, and the pairs are separated into halves; the factor of the sine is a product of its own, behind the
        values."""

        def rows(linear: Any, scale: float = 1.0) -> torch.Tensor:
            return torch.cat((linear.weight, linear.bias[:, None]), 1) * scale

        attention, half = block.attn, self.head // 2
        parts = [rows(attention.to_q, self.head**-0.5), rows(attention.to_k)]
        turned = []
        for part in parts:
            part[: self.head] = first = torch.cat((part[0 : self.head : 2], part[1 : self.head : 2]))
            turned.append(torch.cat((-first[half:], first[:half])))
        stacked = torch.cat([*parts, rows(attention.to_v), *turned])
        qkv = (stacked[:, :-1].contiguous(), stacked[:, -1].contiguous())

        def of(linear: Any) -> tuple[torch.Tensor, torch.Tensor]:
            return linear.weight, linear.bias

        back, ahead = bool(block.look_backward_block), bool(block.look_ahead_block)
        wide, narrow = (layer for layer in block.ff.ff if isinstance(layer, torch.nn.Linear))
        return _Layer(back, ahead, qkv, of(attention.to_out[0]), of(wide), of(narrow))

    def memory_shape(self, windows: int) -> tuple[int, ...]:
        """Return the shape Return the shape [evaluations, layers that look back, keys and values, heads, 2 * windows,
        block, head]."""
        backward = sum(layer.back for layer in self._layers)
        return self.evaluations, backward, 2, self.heads, 2 * windows, self.block, self.head

    def prepare(self, layout: Layout) -> Prepared:
        kinds = {(layer.back, layer.ahead) for layer in self._layers}
        angles = layout.positions[..., None] * self._frequencies
        cos, sin = angles.cos() * self._rotary_scale, angles.sin() * self._rotary_scale
        edges = {kind: self._edges(layout, *kind) for kind in kinds}
        return Prepared(layout, edges, torch.cat((cos, cos), -1), torch.cat((sin, sin), -1))

    def _edges(self, layout: Layout, back: bool, ahead: bool) -> Edges | None:
        places = torch.arange(self.block, device=layout.filled.device)
        there = places < layout.filled[:, None]
        seen = [there]
        if back:
            before = there.roll(1, 0)
            before[layout.starts] = layout.remembered[:, None]
            seen.insert(0, before)
        if ahead:
            behind = there.roll(-1, 0)
            behind[layout.ends] = False
            seen.append(behind)
        keys = torch.cat(seen, 1)
        rows = (~keys.all(1)).nonzero()[:, 0]
        if not len(rows):
            return None
        bias = torch.zeros(keys.shape, device=keys.device).masked_fill_(~keys, -torch.inf)
        return Edges(rows, bias[rows][:, None])

    def constant(self, values: torch.Tensor) -> torch.Tensor:
        """Compute the contribution of a voice and codes [blocks, block, …] (likeness, embedding of the code,
        vector)."""
        return F.linear(values, *self._constant)

    def velocity(
        self,
        evaluation: int,
        x: torch.Tensor,
        constant: torch.Tensor,
        guidance: float,
        prepared: Prepared,
        past: torch.Tensor,
        future: torch.Tensor,
    ) -> torch.Tensor:
        """Compute the velocity of the frames x [blocks / 2, block, mels], with guidance; same shape.

        ``past`` is the windows' memory at this evaluation (:meth:`memory_shape`): keys and values of the blocks before
        the windows, in the layers that look back. Keys and values of blocks to be remembered are written to ``future``.
        """
        hidden = (F.linear(x, self._take) + constant.unflatten(0, (2, -1))).flatten(0, 1)
        backward = 0
        for layer, modulation in zip(self._layers, self._modulations[evaluation], strict=True):
            shift, scale, gate, then_shift, then_scale, then_gate = modulation
            qkv = self._project(layer, F.layer_norm(hidden, scale.shape, scale, shift, _EPSILON), prepared)
            keys = qkv[1:]
            if layer.back:
                future[backward] = keys[:, :, prepared.layout.kept]
                keys = _beside(keys, prepared.layout, past[backward], layer.ahead)
                backward += 1
            elif layer.ahead:
                keys = _beside(keys, prepared.layout, None, True)
            seen = self._attend(qkv[0], keys, prepared.edges[layer.back, layer.ahead])
            hidden = torch.addcmul(hidden, F.linear(seen, *layer.out), gate)
            normed = F.layer_norm(hidden, scale.shape, then_scale, then_shift, _EPSILON)
            hidden = torch.addcmul(hidden, F.linear(_gelu(F.linear(normed, *layer.wide)), *layer.narrow), then_gate)
        scale, shift = self._last[evaluation]
        guided, free = F.layer_norm(hidden, scale.shape, scale, shift, _EPSILON).chunk(2)
        return F.linear(torch.lerp(free, guided, 1 + guidance), *self._give)

    def _project(self, layer: _Layer, normed: torch.Tensor, prepared: Prepared) -> torch.Tensor:
        """Queries, keys and values [3, heads, blocks, block, head]."""
        heads = F.linear(normed, *layer.qkv).unflatten(-1, (-1, self.head)).permute(2, 0, 1, 3).contiguous()
        qkv, turned = heads.split((3 * self.heads, 2))
        qkv[: 2 * self.heads : self.heads].mul_(prepared.cos).addcmul_(turned, prepared.sin)
        return qkv.unflatten(0, (3, self.heads))

    def _attend(self, queries: torch.Tensor, keys: torch.Tensor, edges: Edges | None) -> torch.Tensor:
        """Queries [heads, blocks, block, head] to keys and values [2, heads, blocks, keys, head]: [blocks, block, heads
        * head]. Products and softmax by themselves are faster for blocks as short as these than a fused kernel."""
        scores = torch.matmul(queries, keys[0].mT)
        if edges is not None:
            scores.index_add_(1, edges.rows, edges.bias.expand(self.heads, -1, self.block, -1))
        mixed = torch.matmul(torch.softmax(scores, -1), keys[1])
        return mixed.permute(1, 2, 0, 3).flatten(2)


def _beside(own: torch.Tensor, layout: Layout, past: torch.Tensor | None, ahead: bool) -> torch.Tensor:
    """Put each block's keys and values [2, heads, blocks, block, head] between the keys and values of its neighbours.
    :class:`Edges` masks the keys of other windows from a window's first and last block."""
    parts = [own]
    if past is not None:
        before = own.roll(1, 2)
        before[:, :, layout.starts] = past
        parts.insert(0, before)
    if ahead:
        parts.append(own.roll(-1, 2))
    return torch.cat(parts, 3)


def _gelu(x: torch.Tensor) -> torch.Tensor:
    """Compute ``gelu`` by tanh as ``x * sigmoid(2 z)`` with ``z = sqrt(2 / pi) * (x + 0.044715 x³)``: on a CPU torch's
    sigmoid is many times faster than torch's tanh."""
    inner = (x * x).mul_(_GELU_CUBE).add_(_GELU_LINE).mul_(x)
    return inner.sigmoid_().mul_(x)
