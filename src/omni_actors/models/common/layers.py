"""Decoder layers of the Llama kind, written out over a flat list of tokens.

The weights are those of a transformers model. The layers are written out because per-token overhead dominates once a
step reads the weights only once: one product for query, key and value, one for gate and up, rotary tables made once, no
cache objects, no module calls. Families differ before the first layer and after the last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from omni_actors.models.common.experts import Experts
from omni_actors.platforms.runtime.kernels import Kernels, Linear
from omni_actors.worker.collectives import ALONE, Group
from omni_actors.worker.engines.autoregressive.decoder import Attention, KVShape

Mix = Callable[[torch.Tensor], torch.Tensor]
"""A feed-forward part: [tokens, width] → [tokens, width]."""

After = Callable[[int, torch.Tensor], torch.Tensor]
"""A function of a layer's index and output [tokens, width]; its result is the input of the next layer."""


@dataclass(slots=True)
class _Layer:
    input_norm: torch.Tensor
    qkv: Linear
    head_norm: torch.Tensor | None
    """Weights [heads + kv_heads, head_dim] of the norms of queries and keys."""
    out: Linear
    mlp_norm: torch.Tensor
    mlp: Mix
    window: int | None


class Layers:
    """The layers of one decoder, without embeddings, final norm and head.

    The constructor takes the weights out of ``modules`` (a ModuleList), layer by layer: the modules are of no use
    afterwards. A layer has ``self_attn`` with projections (and norms of queries and keys, perhaps), two norms, and
    ``mlp``: gated with SiLU, or a mixture of experts. Products are those of ``kernels``.

    For the weights of one rank of ``group`` (:mod:`omni_actors.models.common.split`), ``heads`` and ``kv_heads`` count
    the rank's own, and the rank's outputs of attention and feed-forward parts are summed over all ranks.
    """

    @torch.inference_mode()
    def __init__(self, modules: Any, eps: float, kernels: Kernels, group: Group = ALONE) -> None:
        attention = modules[0].self_attn
        weight = attention.q_proj.weight
        self.device, self.dtype = weight.device, weight.dtype
        self.head_dim = int(attention.head_dim)
        self.heads = attention.q_proj.weight.shape[0] // self.head_dim
        self.kv_heads = attention.k_proj.weight.shape[0] // self.head_dim
        self.width = int(attention.q_proj.weight.shape[1])
        self.eps = eps
        self._group = group
        self._scale = float(getattr(attention, "scaling", self.head_dim**-0.5))
        self._layers: list[_Layer] = []
        for i in range(len(modules)):
            self._layers.append(_take(modules[i], self.heads, self.kv_heads, kernels, group))
            modules[i] = torch.nn.Identity()  # its weights would be in memory twice

    def __len__(self) -> int:
        return len(self._layers)

    def kv_shape(self, side: int = 0) -> KVShape:
        return KVShape(len(self._layers), self.kv_heads, self.head_dim, self.dtype, side)

    def __call__(
        self,
        x: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        attention: Attention,
        after: After | None = None,
    ) -> torch.Tensor:
        """Run ``x`` [tokens, width] through every layer; ``cos`` and ``sin`` [tokens, 1, head_dim] are of
        :class:`~omni_actors.models.common.rotary.Rotary`. The caller applies the final norm."""
        heads, kv_heads, head_dim, eps = self.heads, self.kv_heads, self.head_dim, self.eps
        turned, width, half = heads + kv_heads, (self.width,), self.head_dim // 2
        total = self._group.sum
        for i, layer in enumerate(self._layers):
            qkv = layer.qkv(torch.rms_norm(x, width, layer.input_norm, eps)).view(-1, turned + kv_heads, head_dim)
            place = plain = qkv[:, :turned]
            if layer.head_norm is not None:
                plain = torch.rms_norm(plain, (head_dim,), None, eps) * layer.head_norm
            torch.addcmul(plain * cos, plain.roll(half, -1), sin, out=place)
            out = attention.attend(i, qkv[:, :heads], qkv[:, heads:], self._scale, layer.window)
            x = x + total(layer.out(out.reshape(-1, heads * head_dim)))
            x = x + total(layer.mlp(torch.rms_norm(x, width, layer.mlp_norm, eps)))
            if after is not None:
                x = after(i, x)
        return x


class _Gated:
    """A feed-forward part: SiLU(gate) * up, then down."""

    def __init__(self, module: Any, kernels: Kernels) -> None:
        self._gate_up = join(module.gate_proj, module.up_proj, kernels=kernels)
        self._down = join(module.down_proj, kernels=kernels)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self._gate_up(x).chunk(2, -1)
        return self._down(F.silu(gate) * up)


class _Mixture:
    """Routed experts, and a shared expert behind a gate of its own in families that have one."""

    def __init__(self, module: Any, kernels: Kernels, group: Group) -> None:
        router, experts = module.gate, module.experts
        own_experts = int(experts.down_proj.shape[0])
        self._experts = Experts(
            own(router),
            experts.gate_up_proj.detach().clone(),
            experts.down_proj.detach().clone(),
            int(router.top_k),
            bool(router.norm_topk_prob),
            kernels,
            first=group.rank * own_experts if own_experts < router.weight.shape[0] else 0,
        )
        shared = getattr(module, "shared_expert", None)
        self._shared = None if shared is None else _Gated(shared, kernels)
        self._shared_gate = None if shared is None else own(module.shared_expert_gate)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        out = self._experts(x)
        if self._shared is not None and self._shared_gate is not None:
            out = torch.addcmul(out, torch.sigmoid(F.linear(x, self._shared_gate)), self._shared(x))
        return out


def _take(layer: Any, heads: int, kv_heads: int, kernels: Kernels, group: Group) -> _Layer:
    attention = layer.self_attn
    query_norm, key_norm = getattr(attention, "q_norm", None), getattr(attention, "k_norm", None)
    head_norm = None
    if query_norm is not None and key_norm is not None:
        head_norm = torch.cat((own(query_norm).expand(heads, -1), own(key_norm).expand(kv_heads, -1)))
    window = getattr(attention, "sliding_window", None)
    return _Layer(
        input_norm=own(layer.input_layernorm),
        qkv=join(attention.q_proj, attention.k_proj, attention.v_proj, kernels=kernels),
        head_norm=head_norm,
        out=join(attention.o_proj, kernels=kernels),
        mlp_norm=own(layer.post_attention_layernorm),
        mlp=_Mixture(layer.mlp, kernels, group) if hasattr(layer.mlp, "experts") else _Gated(layer.mlp, kernels),
        window=None if window is None else int(window),
    )


def join(*modules: Any, kernels: Kernels) -> Linear:
    """Join linear modules with the same input to one: their outputs side by side."""
    biases = [_bias(m) for m in modules]
    weight = torch.cat([m.weight.detach() for m in modules])
    return kernels.linear(weight, join_biases(biases, [m.weight.shape[0] for m in modules], weight))


def join_biases(biases: Sequence[Any], sizes: Sequence[int], like: torch.Tensor) -> torch.Tensor | None:
    """Join biases side by side; zeros for a module without a bias beside modules with one."""
    if all(bias is None for bias in biases):
        return None
    zeros = (like.new_zeros(size) for size in sizes)
    return torch.cat([zero if bias is None else bias for bias, zero in zip(biases, zeros, strict=True)])


def own(module: Any) -> torch.Tensor:
    """Return a copy of the module's weight: the original may be a view of the whole weights file, and keep all of
    it."""
    weight: torch.Tensor = module.weight.detach().clone()
    return weight


def _bias(module: Any) -> Any:
    return None if module.bias is None else module.bias.detach().clone()
