"""A decoder for any transformers ``*ForCausalLM``: the model's own modules, an attention that reads the paged cache.

transformers lets a model take its attention function from a registry. Our function finds the step's
:class:`~omni_actors.worker.engines.autoregressive.decoder.Attention` among the keyword arguments passed by the model.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from transformers import AttentionInterface

from omni_actors.protocol.errors import ErrorInfo, OmniError
from omni_actors.worker.engines.autoregressive.decoder import Attention, KVShape, StepInputs, StepOutput

IMPLEMENTATION = "omni_paged"


class UnsupportedModel(OmniError):
    """The architecture is not one that :class:`GenericDecoder` computes."""

    def __init__(self, why: str) -> None:
        message = f"the torch engine cannot compute this model: {why}"
        super().__init__(ErrorInfo(message=message, code="bad_model", status=500))


def _attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    omni_attention: Attention | None = None,
    s_aux: torch.Tensor | None = None,
    position_bias: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' attention function: [1, heads, tokens, head_dim] in, [1, tokens, heads, head_dim] out."""
    if omni_attention is None or s_aux is not None or position_bias is not None or key.shape != value.shape:
        raise UnsupportedModel(f"{type(module).__name__} needs another attention than the paged one")
    key_value = torch.cat((key[0], value[0])).transpose(0, 1)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    out = omni_attention.attend(module.layer_idx, query[0].transpose(0, 1), key_value, scale, sliding_window, softcap)
    return out.unsqueeze(0), None


class GenericDecoder:
    """Implements :class:`~omni_actors.worker.engines.autoregressive.decoder.Decoder` by the model's own ``forward``.

    Raises :class:`UnsupportedModel` for an architecture that the paged cache cannot hold.
    """

    def __init__(self, model: Any) -> None:
        config = model.config.get_text_config()
        check_supported(model)
        AttentionInterface.register(IMPLEMENTATION, _attend)
        model.set_attn_implementation(IMPLEMENTATION)
        heads = config.num_attention_heads
        kv_heads = getattr(config, "num_key_value_heads", None) or heads
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
        self._model = model
        self.device = model.device
        self.vocab_size = int(model.get_output_embeddings().weight.shape[0])
        self.kv_shape = KVShape(config.num_hidden_layers, kv_heads, head_dim, model.dtype)

    def forward(self, inputs: StepInputs, attention: Attention) -> StepOutput:
        logits: torch.Tensor = self._model(
            input_ids=inputs.tokens.unsqueeze(0),
            position_ids=inputs.positions.unsqueeze(0),
            use_cache=False,
            logits_to_keep=inputs.rows,
            omni_attention=attention,
        ).logits
        return StepOutput(logits[0])


def check_supported(model: Any) -> None:
    """Raise :class:`UnsupportedModel`, with the reason, for a model that caches more per token than keys and values, or
    with attention that cannot be replaced."""
    name, config = type(model).__name__, model.config.get_text_config()
    if getattr(config, "is_encoder_decoder", False):
        raise UnsupportedModel(f"{name} has an encoder")
    kinds = set(getattr(config, "layer_types", None) or ())
    if unknown := kinds - {"full_attention", "sliding_attention"}:
        raise UnsupportedModel(f"{name} has layers of kind {min(unknown)}")
    if not getattr(model, "_supports_attention_backend", False):
        raise UnsupportedModel(f"{name} computes attention by code of its own, which cannot read a paged cache")
    if missing := {"position_ids", "logits_to_keep"} - inspect.signature(model.forward).parameters.keys():
        raise UnsupportedModel(f"{name} takes no {min(missing)}")
    if any(getattr(module, "is_causal", True) is False for module in model.modules()):
        raise UnsupportedModel(f"{name} is configured as an encoder: its attention looks ahead")
