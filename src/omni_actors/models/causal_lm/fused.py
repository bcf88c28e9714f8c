"""A decoder of the Llama kind (Llama, Mistral, Qwen2, Qwen3), computed over a flat list of tokens.

The weights are those of the transformers model; the layers are written out here, because per-token overhead is what is
left once a step reads the weights only once: one product for query, key and value, one for gate and up, rotary tables
made once, no cache objects, no module calls.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from omni_actors.worker.engines.decoder import Attention, KVShape, StepInputs, StepOutput
from omni_actors.worker.engines.linear import Linear, linear

MODEL_TYPES = frozenset({"llama", "mistral", "qwen2", "qwen3"})
_STATIC_ROPE = frozenset({"default", "linear", "llama3", "yarn"})


def supports(model: Any) -> bool:
    """Whether :class:`FusedDecoder` computes exactly what this transformers ``*ForCausalLM`` does."""
    config = model.config
    rope = getattr(model.model, "rotary_emb", None) if config.model_type in MODEL_TYPES else None
    return (
        rope is not None
        and getattr(rope, "rope_type", None) in _STATIC_ROPE
        and config.hidden_act == "silu"
        and getattr(config, "pretraining_tp", 1) == 1
        and all(getattr(layer.self_attn, "sliding_window", None) is None for layer in model.model.layers)
        and getattr(config, "sliding_window", None) is None
    )


@dataclass(slots=True)
class _Layer:
    input_norm: torch.Tensor
    qkv: Linear
    query_norm: torch.Tensor | None
    key_norm: torch.Tensor | None
    out: Linear
    mlp_norm: torch.Tensor
    gate_up: Linear
    down: Linear


class FusedDecoder:
    """Implements :class:`~omni_actors.worker.engines.decoder.Decoder`.

    Takes the weights out of ``model``, layer by layer: the model is of no use afterwards. ``positions`` is one more
    than the greatest position that will be asked for.
    """

    @torch.inference_mode()
    def __init__(self, model: Any, positions: int) -> None:
        base, config = model.model, model.config
        attention = base.layers[0].self_attn
        self.device = base.embed_tokens.weight.device
        self.vocab_size = int(model.lm_head.weight.shape[0])
        self._head_dim = int(attention.head_dim)
        self._heads = attention.q_proj.weight.shape[0] // self._head_dim
        self._kv_heads = attention.k_proj.weight.shape[0] // self._head_dim
        self._scale = float(attention.scaling)
        self._eps = float(config.rms_norm_eps)
        self._embeddings = _own(base.embed_tokens)
        dtype = self._embeddings.dtype
        self.kv_shape = KVShape(len(base.layers), self._kv_heads, self._head_dim, dtype)
        self._cos, self._sin = _rotary_tables(base.rotary_emb, positions, dtype, self.device)
        self._norm = _own(base.norm)
        self._head = linear(model.lm_head.weight.detach(), _bias(model.lm_head))
        self._layers: list[_Layer] = []
        for i in range(len(base.layers)):
            self._layers.append(_take(base.layers[i]))
            base.layers[i] = torch.nn.Identity()  # its weights would be in memory twice

    def forward(self, inputs: StepInputs, attention: Attention) -> StepOutput:
        heads, kv_heads, head_dim, eps = self._heads, self._kv_heads, self._head_dim, self._eps
        turned = heads + kv_heads
        cos = self._cos.index_select(0, inputs.positions).unsqueeze(1)
        sin = self._sin.index_select(0, inputs.positions).unsqueeze(1)
        x = F.embedding(inputs.tokens, self._embeddings)
        width = (x.shape[1],)
        for i, layer in enumerate(self._layers):
            qkv = layer.qkv(torch.rms_norm(x, width, layer.input_norm, eps)).view(-1, turned + kv_heads, head_dim)
            if layer.query_norm is not None:
                qkv[:, :heads] = torch.rms_norm(qkv[:, :heads], (head_dim,), layer.query_norm, eps)
                qkv[:, heads:turned] = torch.rms_norm(qkv[:, heads:turned], (head_dim,), layer.key_norm, eps)
            plain = qkv[:, :turned]
            torch.addcmul(plain * cos, plain.roll(head_dim // 2, -1), sin, out=plain)
            out = attention.attend(i, qkv[:, :heads], qkv[:, heads:], self._scale)
            x = x + layer.out(out.reshape(-1, heads * head_dim))
            gate, up = layer.gate_up(torch.rms_norm(x, width, layer.mlp_norm, eps)).chunk(2, -1)
            x = x + layer.down(F.silu(gate) * up)
        x = torch.rms_norm(x.index_select(0, inputs.rows), width, self._norm, eps)
        return StepOutput(self._head(x))


def _take(layer: Any) -> _Layer:
    attention, mlp = layer.self_attn, layer.mlp
    query_norm, key_norm = getattr(attention, "q_norm", None), getattr(attention, "k_norm", None)
    return _Layer(
        input_norm=_own(layer.input_layernorm),
        qkv=_join(attention.q_proj, attention.k_proj, attention.v_proj),
        query_norm=None if query_norm is None else _own(query_norm),
        key_norm=None if key_norm is None else _own(key_norm),
        out=_join(attention.o_proj),
        mlp_norm=_own(layer.post_attention_layernorm),
        gate_up=_join(mlp.gate_proj, mlp.up_proj),
        down=_join(mlp.down_proj),
    )


def _join(*modules: Any) -> Linear:
    """Linear modules with the same input as one: their outputs side by side."""
    biases = [_bias(m) for m in modules]
    weight = torch.cat([m.weight.detach() for m in modules])
    return linear(weight, None if biases[0] is None else torch.cat(biases))


def _own(module: Any) -> torch.Tensor:
    """A copy of the module's weight: the original may be a view of the whole weights file, and keep all of it."""
    weight: torch.Tensor = module.weight.detach().clone()
    return weight


def _bias(module: Any) -> Any:
    return None if module.bias is None else module.bias.detach().clone()


def _rotary_tables(
    rotary: Any, positions: int, dtype: torch.dtype, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines [positions, head_dim]; the sign that the rotation gives the first half is in the sines."""
    places = torch.arange(positions, device=device).unsqueeze(0)
    cos, sin = rotary(torch.empty(1, dtype=dtype, device=device), places)
    sin = sin[0].clone()
    sin[:, : sin.shape[1] // 2].neg_()
    return cos[0].contiguous(), sin
