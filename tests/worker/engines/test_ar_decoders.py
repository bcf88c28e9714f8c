"""Both decoders compute what transformers computes, however the tokens are cut into steps."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
import torch
from tests.worker.engines import tiny_models

from omni_actors.models.causal_lm.fused import FusedDecoder, supports
from omni_actors.models.causal_lm.generic import GenericDecoder, UnsupportedModel
from omni_actors.platforms.cpu.kernels import KERNELS
from omni_actors.worker.engines.autoregressive.cache import BlockPool
from omni_actors.worker.engines.autoregressive.decoder import Decoder
from omni_actors.worker.engines.autoregressive.runner import ModelRunner
from omni_actors.worker.engines.autoregressive.sequence import ScheduledChunk, Sequence

BLOCK = 16
CUTS = (1, 7, 20, 3, 1, 33)
LENGTHS = (1, 5, 40, 70, 70, 33)

FUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama tied, biased": ("llama", {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
    "llama3 rope": (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 4.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 128,
            }
        },
    ),
    "mistral": ("mistral", {"sliding_window": None}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {}),
    "qwen3, one head per key": ("qwen3", {"num_key_value_heads": 6}),
}
GENERIC_ONLY: dict[str, tuple[str, dict[str, Any]]] = {
    "mistral, sliding window": ("mistral", {"sliding_window": 20}),
    "gemma2, window and softcap": (
        "gemma2",
        {"sliding_window": 20, "query_pre_attn_scalar": 16, "attn_logit_softcapping": 3.0},
    ),
    "olmo2": ("olmo2", {}),
    "phi3": ("phi3", {}),
    "gpt_neox": ("gpt_neox", {"num_key_value_heads": None}),
    "gpt2": ("gpt2", {"num_key_value_heads": None, "head_dim": None}),
}


def step_logits(decoder: Decoder, prompts: list[list[int]]) -> list[list[torch.Tensor]]:
    """The logits after every token that ends a chunk, by sequence: chunks of changing sizes, all sequences at once."""
    pool = BlockPool(64, BLOCK)
    runner = ModelRunner(decoder, 64, BLOCK, KERNELS)
    sequences = [Sequence(i, 0, i, tokens, len(tokens)) for i, tokens in enumerate(prompts)]
    found: list[list[torch.Tensor]] = [[] for _ in prompts]
    for step in itertools.count():
        chunks = []
        for i, sequence in enumerate(sequences):
            count = min(CUTS[(i + step) % len(CUTS)], sequence.pending)
            if count:
                missing = pool.blocks_for(sequence.computed + count) - len(sequence.blocks)
                sequence.blocks += pool.allocate(max(0, missing))
                chunks.append(ScheduledChunk(sequence, sequence.computed, count, sample=True))
        if not chunks:
            return found
        for chunk, logits in zip(chunks, runner.run(chunks).logits, strict=True):
            found[chunk.sequence.key].append(torch.cat([torch.tensor([chunk.start + chunk.count - 1.0]), logits]))
            chunk.sequence.advance(chunk.count, pool)
    raise AssertionError


def worst_error(decoder: Decoder, model: Any) -> float:
    """Greatest difference of logits from the model's own forward, over all sequences and steps, relative to the largest
    logit if that is above 1 (GPT-2's come from its large embeddings)."""
    generator = torch.Generator().manual_seed(1)
    prompts = [torch.randint(0, 256, (n,), generator=generator).tolist() for n in LENGTHS]
    with torch.inference_mode():
        wanted = [model(torch.tensor([tokens])).logits[0] for tokens in prompts]
    worst = 0.0
    for want, steps in zip(wanted, step_logits(decoder, prompts), strict=True):
        for step in steps:
            worst = max(worst, float((step[1:] - want[int(step[0])]).abs().max()))
    return worst / max(1.0, *(float(logits.abs().max()) for logits in wanted))


@pytest.mark.parametrize("name", FUSED)
def test_fused_decoder_equals_transformers(name: str) -> None:
    kind, changes = FUSED[name]
    model = tiny_models.build(kind, **changes)
    assert supports(model)
    assert worst_error(FusedDecoder(copy.deepcopy(model), tiny_models.CONTEXT, KERNELS), model) < 1e-5


@pytest.mark.parametrize("name", [*FUSED, *GENERIC_ONLY])
def test_generic_decoder_equals_transformers(name: str) -> None:
    kind, changes = (FUSED | GENERIC_ONLY)[name]
    model = tiny_models.build(kind, **changes)
    assert worst_error(GenericDecoder(copy.deepcopy(model)), model) < 1e-5


@pytest.mark.parametrize("name", GENERIC_ONLY)
def test_what_the_fused_layers_do_not_compute_they_do_not_claim(name: str) -> None:
    kind, changes = GENERIC_ONLY[name]
    assert not supports(tiny_models.build(kind, **changes))


def test_a_model_that_keeps_other_state_is_refused() -> None:
    model = tiny_models.build("qwen3_next", num_hidden_layers=4, num_experts=2, num_experts_per_tok=1)
    with pytest.raises(UnsupportedModel, match="linear_attention"):
        GenericDecoder(model)


def test_the_comparison_sees_a_shifted_position() -> None:
    model = tiny_models.build()
    decoder = FusedDecoder(copy.deepcopy(model), tiny_models.CONTEXT, KERNELS)
    forward = decoder.forward

    def shifted(inputs: Any, attention: Any) -> Any:
        inputs.positions[-1] += 1
        return forward(inputs, attention)

    decoder.forward = shifted  # type: ignore[method-assign]
    assert worst_error(decoder, model) > 1e-2


def test_the_comparison_sees_layers_in_the_wrong_order() -> None:
    model = tiny_models.build()
    decoder = FusedDecoder(copy.deepcopy(model), tiny_models.CONTEXT, KERNELS)
    decoder._layers._layers.reverse()
    assert worst_error(decoder, model) > 1e-2
