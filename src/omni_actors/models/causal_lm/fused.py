"""A decoder of the Llama kind (Llama, Mistral, Qwen2, Qwen3), its layers written out."""

from __future__ import annotations

from typing import Any

import torch

from omni_actors.models.causal_lm.pipeline import MODEL_TYPES
from omni_actors.models.common.embedding import embed
from omni_actors.models.common.layers import Layers, join, own
from omni_actors.models.common.rotary import Rotary
from omni_actors.platforms.runtime.kernels import Kernels
from omni_actors.worker.collectives import ALONE, Group
from omni_actors.worker.engines.autoregressive.decoder import Attention, StepInputs, StepOutput

_STATIC_ROPE = frozenset({"default", "linear", "llama3", "yarn"})


def supports(model: Any) -> bool:
    """Return whether :class:`FusedDecoder` computes exactly the function of a transformers ``*ForCausalLM``."""
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


class FusedDecoder:
    """Implements :class:`~omni_actors.worker.engines.autoregressive.decoder.CapturableDecoder`.

    Takes the weights out of ``model``, layer by layer: the model is of no use afterwards. ``positions`` is one more
    than the greatest position that will be asked for. The model may hold the weights of one rank of ``group`` alone.
    """

    @torch.inference_mode()
    def __init__(self, model: Any, positions: int, kernels: Kernels, group: Group = ALONE) -> None:
        base = model.model
        self.device = base.embed_tokens.weight.device
        self.vocab_size = int(model.config.vocab_size)
        self._group = group
        self._embeddings = own(base.embed_tokens)
        self._rotary = Rotary(base.rotary_emb, positions, self._embeddings.dtype, self.device)
        self._norm = own(base.norm)
        self._head = join(model.lm_head, kernels=kernels)
        self._layers = Layers(base.layers, float(model.config.rms_norm_eps), kernels, group)
        self.kv_shape = self._layers.kv_shape()

    def forward(self, inputs: StepInputs, attention: Attention) -> StepOutput:
        return self.compute(self.prepare(inputs), inputs.rows, attention)

    def prepare(self, inputs: StepInputs) -> tuple[torch.Tensor, ...]:
        return inputs.tokens, inputs.positions

    def compute(
        self, prepared: tuple[torch.Tensor, ...], rows: torch.Tensor | None, attention: Attention
    ) -> StepOutput:
        tokens, positions = prepared
        cos, sin = self._rotary.at(positions)
        x = self._layers(embed(tokens, self._embeddings, self._group), cos, sin, attention)
        x = x if rows is None else x.index_select(0, rows)
        x = torch.rms_norm(x, (x.shape[1],), self._norm, self._layers.eps)
        return StepOutput(self._group.gather(self._head(x))[:, : self.vocab_size])
